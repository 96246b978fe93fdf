// Views of xla tensors in C++: they change metadata only, and a model has more of them than recorded operators. The
// kernels are registered through torch's stable C interface (torch/csrc/stable), whose headers are small.

#include <ATen/InferSize.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/stable/c/shim.h>

#include <optional>
#include <utility>

namespace at::detail {
// As in ATen/TensorUtils.h, which includes all of torch.
std::optional<DimVector> computeStride(IntArrayRef shape, IntArrayRef strides, const DimVector& new_shape);
}  // namespace at::detail

namespace views {

using c10::IntArrayRef;
using Handle = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;  // all that an at::Tensor is

// The tensor argument of a kernel, which its result replaces.
class Argument {
 public:
  explicit Argument(StableIValue value) : handle_(reinterpret_cast<AtenTensorHandle>(value)) {}
  Argument(const Argument&) = delete;
  ~Argument() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  const c10::TensorImpl* operator->() const { return tensor().get(); }

  // Becomes a contiguous copy, which the engine records.
  void copy() {
    StableIValue stack[] = {reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr))};
    TORCH_CHECK(!aoti_torch_call_dispatcher("neurontools::copy_for_view", "", stack), "cannot copy a tensor for view()");
    handle_ = reinterpret_cast<AtenTensorHandle>(stack[0]);
  }

  StableIValue view(IntArrayRef shape, IntArrayRef strides, int64_t offset) {
    auto made = c10::make_intrusive<c10::TensorImpl, c10::UndefinedTensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(tensor()->storage()), tensor()->key_set(), tensor()->dtype());
    made->set_sizes_and_strides(shape, strides, offset);
    tensor() = std::move(made);
    return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr));
  }

 private:
  Handle& tensor() const { return *reinterpret_cast<Handle*>(handle_); }
  AtenTensorHandle handle_;
};

at::DimVector take_list(StableIValue value) {
  auto* list = reinterpret_cast<StableListHandle>(value);
  size_t size = 0;
  torch_list_size(list, &size);
  at::DimVector found(size);
  for (size_t i = 0; i < size; ++i) {
    StableIValue item = 0;
    torch_list_get_item(list, i, &item);
    found[i] = static_cast<int64_t>(item);
  }
  torch_delete_list(list);
  return found;
}

std::optional<int64_t> take_optional(StableIValue value) {
  auto* item = reinterpret_cast<StableIValue*>(value);
  if (item == nullptr) return std::nullopt;
  const auto found = static_cast<int64_t>(*item);
  delete item;
  return found;
}

// The checks and messages are those of torch's own kernels. Bounds are not checked here: storages on the device hold no
// bytes; the recorder finds a view that is too large when it learns the operator that reads it.
StableIValue restride(Argument& self, IntArrayRef shape, IntArrayRef strides, int64_t offset) {
  TORCH_CHECK(shape.size() == strides.size(), "mismatch in length of strides and shape");
  for (const int64_t stride : strides) {
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  }
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  return self.view(shape, strides, offset);
}

void as_strided(StableIValue* stack, uint64_t, uint64_t) {
  Argument self(stack[0]);
  const auto shape = take_list(stack[1]), strides = take_list(stack[2]);
  const auto offset = take_optional(stack[3]).value_or(self->storage_offset());
  stack[0] = restride(self, shape, strides, offset);
}

void reshape_alias(StableIValue* stack, uint64_t, uint64_t) {
  Argument self(stack[0]);
  const auto shape = take_list(stack[1]), strides = take_list(stack[2]);
  stack[0] = self.view(shape, strides, self->storage_offset());
}

void view(StableIValue* stack, uint64_t, uint64_t) {
  Argument self(stack[0]);
  const auto shape = at::infer_size_dv(take_list(stack[1]), self->numel());
  auto strides = at::detail::computeStride(self->sizes(), self->strides(), shape);
  if (!strides && c10::get_privateuse1_backend() == "xla") {  // where tensors have no strides
    self.copy();
    strides = at::detail::computeStride(self->sizes(), self->strides(), shape);
  }
  TORCH_CHECK(strides.has_value(),
              "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
              "two contiguous subspaces). Use .reshape(...) instead.");
  stack[0] = self.view(shape, *strides, self->storage_offset());
}

// torch's kernels of the two would go through the dispatcher again, to as_strided.
StableIValue swap_dimensions(Argument& self, int64_t one, int64_t other) {
  at::DimVector shape(self->sizes()), strides(self->strides());
  if (one != other) {
    std::swap(shape[one], shape[other]);
    std::swap(strides[one], strides[other]);
  }
  return self.view(shape, strides, self->storage_offset());
}

void transpose(StableIValue* stack, uint64_t, uint64_t) {
  Argument self(stack[0]);
  const int64_t one = c10::maybe_wrap_dim(static_cast<int64_t>(stack[1]), self->dim());
  const int64_t other = c10::maybe_wrap_dim(static_cast<int64_t>(stack[2]), self->dim());
  stack[0] = swap_dimensions(self, one, other);
}

void transpose_matrix(StableIValue* stack, uint64_t, uint64_t) {
  Argument self(stack[0]);
  const int64_t dimensions = self->dim();
  TORCH_CHECK(dimensions <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", dimensions, "D");
  stack[0] = swap_dimensions(self, 0, dimensions == 2 ? 1 : 0);
}

// Registers the kernels and returns whether torch has taken them.
bool register_all() {
  TorchLibraryHandle library = nullptr;  // never freed: the kernels stay for as long as the process runs
  if (aoti_torch_library_init_impl("aten", "PrivateUse1", __FILE__, __LINE__, &library)) return false;
  return !torch_library_impl(library, "as_strided", &as_strided, TORCH_ABI_VERSION) &&
         !torch_library_impl(library, "view", &view, TORCH_ABI_VERSION) &&
         !torch_library_impl(library, "_reshape_alias", &reshape_alias, TORCH_ABI_VERSION) &&
         !torch_library_impl(library, "t", &transpose_matrix, TORCH_ABI_VERSION) &&
         !torch_library_impl(library, "transpose.int", &transpose, TORCH_ABI_VERSION);
}

}  // namespace views
