// What torch asks of the device in C++: its guard, its allocators and its views. They call Python only to synchronize
// and to read memory: torch uses the guard in functions that must not throw, also while an exception is on its way.

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device_views.h"
#include "pinned_memory.h"
#include "worker_sums.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <typeinfo>

// As in Python.h, which may not be installed.
extern "C" int Py_AddPendingCall(int (*call)(void*), void* argument);
extern "C" int PyObject_IsTrue(void* object);

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

enum Outcome { kRaised, kDone, kFailed };

// Run what is recorded on a device, -1 stands for all; write the bytes of its memory into `memory`; let their peak start
// again; check that it exists. On failure the callback writes the message into `text`, or keeps the exception, which
// `late_errors` raises.
enum Request { kSync, kReadMemory, kResetPeak, kCheck };
struct Memory { int64_t used, peak, limit; };
using Callback = void (*)(Request request, int index, int* outcome, Memory* memory, char* text, size_t size);
using Clock = std::chrono::steady_clock;

constexpr auto kType = c10::DeviceType::PrivateUse1;
thread_local DeviceIndex current = 0;
std::atomic<DeviceIndex> count{1};
Callback callback;
void* late_errors;

// Returns whether the request is done; otherwise Python raises the exception as soon as torch returns to it.
bool call(Request request, DeviceIndex index, Memory* memory = nullptr) {
  char text[1024] = "";
  int outcome = kRaised;  // stays where an exception leaves the callback
  callback(request, index, &outcome, memory, text, sizeof text);
  switch (outcome) {
    case kFailed:
      TORCH_CHECK(false, text);
    case kRaised:
      TORCH_CHECK(Py_AddPendingCall(&PyObject_IsTrue, late_errors) == 0, "interrupted");
      break;
    case kDone:
      break;
  }
  return outcome == kDone;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  DeviceIndex deviceCount() const noexcept override { return count; }
  Device getDevice() const override { return Device(kType, current); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    if (device.index() < count || call(kCheck, device.index())) uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }

  // Graphs run in order, one after the other: a device has one stream, and an event is past once it is recorded.
  Stream getStream(Device device) const override {
    if (!device.has_index()) device = getDevice();
    // torch's engine has an array of `count` streams, which it indexes without a check.
    return Stream(Stream::DEFAULT, device.index() < count ? device : Device(kType, 0));
  }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream&) const override { return true; }
  // An event with a time ends the recording, so that the work before it has run; autograd's events have none.
  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag flag) const override {
    if (flag != c10::EventFlag::BACKEND_DEFAULT) return;
    call(kSync, stream.device_index());
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Clock::time_point*>(event); }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    const auto time = *static_cast<Clock::time_point*>(second) - *static_cast<Clock::time_point*>(first);
    return std::chrono::duration<double, std::milli>(time).count();
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { call(kSync, -1); }
  void synchronizeStream(const Stream& stream) const override { call(kSync, stream.device_index()); }
  void synchronizeDevice(DeviceIndex index) const override { call(kSync, index); }

  // The compiler knows no other complex numbers than complex64, and no quantized tensors.
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    auto& types = capability.capability_data.supported_scalar_types;
    types.has_ComplexHalf = types.has_ComplexDouble = 0;
    types.has_QInt8 = types.has_QUInt8 = types.has_QInt32 = types.has_QUInt4x2 = types.has_QUInt2x4 = 0;
    return capability;
  }
};

// Without an allocator, torch follows a null pointer where a program makes a bare storage.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t) override {
    const auto name = c10::get_privateuse1_backend();
    TORCH_CHECK(false, "storages on ", name, " belong to tensors: make a tensor with device='", name, "' instead");
  }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex index) override { call(kResetPeak, index); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    Memory memory{};
    call(kReadMemory, index, &memory);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = memory.used;
    bytes.peak = memory.peak;
    stats.reserved_bytes = stats.active_bytes = stats.requested_bytes = stats.allocated_bytes;
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) override {
    Memory memory{};
    call(kReadMemory, index, &memory);
    return {memory.limit - memory.used, memory.limit};
  }
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void register_guard(Callback chosen, void* errors) {
  callback = chosen;
  late_errors = errors;
  c10::impl::registerDeviceGuard(kType, new Guard);
  c10::SetAllocator(kType, new Allocator);
  at::RegisterPrivateUse1HooksInterface(new pinned::Hooks);
}

EXPORT bool register_views() {
  static const bool done = views::register_all();
  return done;
}

// Gives a tensor the contents, shape, type and device of another. Unlike Tensor::set_data, which has a list of devices,
// it goes between CPU and device. Returns false, and changes nothing, where a tensor is more than its TensorImpl.
EXPORT bool take_contents(c10::TensorImpl* target, c10::TensorImpl* source) {
  for (const auto* tensor : {target, source}) {
    if (typeid(*tensor) != typeid(c10::TensorImpl) || tensor->key_set().has_any(c10::python_ks)) return false;
  }
  target->shallow_copy_from(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(source));
  return true;
}

// Torch refuses storages that have a size but no bytes, and those of DLPack, which other devices than the first have: they
// come without an allocator.
EXPORT void resize_storage(c10::StorageImpl* storage, size_t size) {
  if (!storage->resizable()) {
    storage->set_allocator(c10::GetAllocator(kType));
    storage->set_resizable(true);
  }
  storage->set_nbytes(size);
}

EXPORT void add_and_scale(
    float* const* tensors, const int64_t* counts, int64_t tensor_count, const float* const* vectors, int64_t vector_count,
    float scale) {
  sums::add_and_scale(tensors, counts, tensor_count, vectors, vector_count, scale);
}

EXPORT void set_device_count(int devices) {
  if (devices > count) count = static_cast<DeviceIndex>(std::min(devices, INT8_MAX));
}
