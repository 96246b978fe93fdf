// What torch asks of a device without a tensor on it: whether it is there, memory for pin_memory=True, another size of a
// storage. Copies to the simulated device gain nothing from pinned memory, so it is ordinary memory whose tensors call
// themselves pinned.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/alloc_cpu.h>

#include <functional>
#include <map>
#include <mutex>

namespace pinned {

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* const data = c10::alloc_cpu(size);
    if (data != nullptr) {
      const std::lock_guard lock(mutex());
      blocks()[data] = size;
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

  static bool owns(const void* data) {
    const std::lock_guard lock(mutex());
    const auto after = blocks().upper_bound(data);
    if (after == blocks().begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return static_cast<const char*>(data) < static_cast<const char*>(begin) + size;
  }

 private:
  static void release(void* data) {
    {
      const std::lock_guard lock(mutex());
      blocks().erase(data);
    }
    c10::free_cpu(data);
  }
  // Never destroyed: tensors outlive the static variables of a library.
  static std::map<const void*, size_t, std::less<>>& blocks() {
    static auto* const all = new std::map<const void*, size_t, std::less<>>;
    return *all;
  }
  static std::mutex& mutex() {
    static auto* const only = new std::mutex;
    return *only;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return Allocator::owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const only = new Allocator;
    return only;
  }
  // Only the number: a storage of the device holds no bytes.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override { storage.set_nbytes(size); }
};

}  // namespace pinned
