// The guard that torch asks for device and stream of the xla device. It calls Python only to synchronize: torch uses
// it in functions that must not throw, also while an exception is on its way.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <csignal>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

enum Outcome { kDone, kFailed, kInterrupted };

// Runs what is recorded on a device, -1 stands for all. On failure it writes the message into `text`.
using Synchronize = Outcome (*)(int index, char* text, size_t size);

constexpr auto kType = c10::DeviceType::PrivateUse1;
thread_local DeviceIndex current = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  explicit Guard(Synchronize synchronize) : synchronize_(synchronize) {}

  c10::DeviceType type() const override { return kType; }
  Device getDevice() const override { return Device(kType, current); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return 1; }

  // Graphs run in order, one after the other: a device has one stream, and an event is past once it is recorded.
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream&) const override { return true; }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { synchronizeDevice(-1); }
  void synchronizeStream(const Stream& stream) const override { synchronizeDevice(stream.device_index()); }

  void synchronizeDevice(DeviceIndex index) const override {
    char text[1024] = "";
    switch (synchronize_(index, text, sizeof text)) {
      case kFailed:
        TORCH_CHECK(false, text);
      case kInterrupted:
        std::raise(SIGINT);  // Python raises KeyboardInterrupt as soon as torch returns to it
      case kDone:
        return;
    }
  }

 private:
  Synchronize synchronize_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void register_guard(Synchronize synchronize) {
  c10::impl::registerDeviceGuard(kType, new Guard(synchronize));
}
