// A stand-in for NVIDIA's management library: sixteen devices that never change, so that the start-up of tools that
// read it can be measured on a computer without such hardware. Each answer costs next to nothing; a real driver's
// would cost more. Functions that are not here are "not found" to its callers, as with an old driver.

#include <stdio.h>
#include <string.h>

enum { DEVICES = 16, SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };

typedef struct device { unsigned index; } *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_info_t;

static struct device devices[DEVICES];

int nvmlInit_v2(void) {
  for (unsigned index = 0; index < DEVICES; ++index) devices[index].index = index;
  return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result ? "error of the stub" : "no error"; }

static int text(char *out, unsigned length, const char *value) {
  snprintf(out, length, "%s", value);
  return SUCCESS;
}
static int number(unsigned *out, unsigned value) {
  *out = value;
  return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) { return text(out, length, "550.54"); }
int nvmlSystemGetNVMLVersion(char *out, unsigned length) { return text(out, length, "12.550.54"); }
int nvmlSystemGetCudaDriverVersion(int *out) { return *out = 12040, SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(unsigned *out) { return number(out, DEVICES); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
  if (index >= DEVICES) return INVALID_ARGUMENT;
  *out = &devices[index];
  return SUCCESS;
}
int nvmlDeviceGetIndex(device_t device, unsigned *out) { return number(out, device->index); }
int nvmlDeviceGetName(device_t device, char *out, unsigned length) {
  return (void)device, text(out, length, "Stub accelerator");
}
int nvmlDeviceGetUUID(device_t device, char *out, unsigned length) {
  snprintf(out, length, "GPU-00000000-0000-0000-0000-%012u", device->index);
  return SUCCESS;
}
int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *out) {
  return (void)device, (void)sensor, number(out, 40);
}
int nvmlDeviceGetFanSpeed(device_t device, unsigned *out) { return (void)device, number(out, 30); }
int nvmlDeviceGetPowerUsage(device_t device, unsigned *out) { return (void)device, number(out, 90000); }
int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *out) { return (void)device, number(out, 400000); }
int nvmlDeviceGetPowerManagementLimit(device_t device, unsigned *out) {
  return nvmlDeviceGetEnforcedPowerLimit(device, out);
}
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
  (void)device;
  *out = (memory_t){80ull << 30, 70ull << 30, 10ull << 30};
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out) {
  (void)device;
  *out = (memory_v2_t){out->version, 80ull << 30, 0, 70ull << 30, 10ull << 30};
  return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out) {
  (void)device;
  *out = (utilization_t){50, 25};
  return SUCCESS;
}
int nvmlDeviceGetEncoderUtilization(device_t device, unsigned *out, unsigned *period_us) {
  *period_us = 1000;
  return (void)device, number(out, 0);
}
int nvmlDeviceGetDecoderUtilization(device_t device, unsigned *out, unsigned *period_us) {
  return nvmlDeviceGetEncoderUtilization(device, out, period_us);
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, void *processes) {
  return (void)device, (void)processes, number(count, 0);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, void *processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}
int nvmlDeviceGetPciInfo_v3(device_t device, pci_info_t *out) {
  *out = (pci_info_t){.bus = device->index};
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", device->index);
  snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", device->index);
  return SUCCESS;
}
int nvmlDeviceGetDisplayActive(device_t device, unsigned *out) { return (void)device, number(out, 0); }
int nvmlDeviceGetPersistenceMode(device_t device, unsigned *out) { return (void)device, number(out, 1); }
int nvmlDeviceGetPerformanceState(device_t device, unsigned *out) { return (void)device, number(out, 0); }
int nvmlDeviceGetComputeMode(device_t device, unsigned *out) { return (void)device, number(out, 0); }
int nvmlDeviceGetDriverModel(device_t device, unsigned *current, unsigned *pending) {
  return (void)device, (void)current, (void)pending, NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(device_t device, int type, int counter, unsigned long long *out) {
  (void)device, (void)type, (void)counter;
  *out = 0;
  return SUCCESS;
}
