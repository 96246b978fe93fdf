// Accesses outside of TCM blocks and tensors, and reads of memory that holds nothing yet. Each case of `fault` has a mark
// "// <name>", by which the tests find its line; the result depends on what is read.
#include <algorithm>
#include <cstring>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

float* take(size_t count) {
  float* block = static_cast<float*>(torch::neuron::tcm_malloc(count * sizeof(float)));  // malloc
  TORCH_CHECK(block != nullptr, "no room in TCM");
  return block;
}

float* filled(size_t count) {
  float* block = take(count);
  for (size_t i = 0; i < count; ++i) block[i] = 1;
  return block;
}

// Gives its block back by itself, as C++ programs like to do.
class Owner {
 public:
  explicit Owner(size_t count) : data(filled(count)) {}
  ~Owner() { torch::neuron::tcm_free(data); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  float* const data;
};

// Not known to the compiler, which would use undefined behaviour to remove code.
volatile int zero = 0;

float in_blocks(const torch::Tensor& input, int64_t which) {
  float* in = filled(8);
  float* other = filled(8);
  float seen = 0;
  switch (which) {
    case 1: seen = in[zero - 1]; break;  // read-before
    case 2: seen = in[zero + 8]; break;  // read-past
    case 3: in[zero + 8] = 2; break;  // write-past
    case 4: other[zero - 1] = 2; break;  // write-before
    case 5: seen = in[zero + 300]; break;  // read-far
    case 6: std::memset(in, zero, 33); break;  // memset
    case 7: std::copy(other, other + 8 + zero, in + 1); break;  // copy
    case 8: seen = static_cast<float>(reinterpret_cast<char*>(in)[zero + 32]); break;  // byte
    case 9: seen = in[zero + (1 << 23)]; break;  // read-elsewhere
    case 10: in[zero - (1 << 23)] = 2; break;  // write-elsewhere
    case 11: {
      auto stream = input.read_stream_accessor<float>();
      float* last = filled(8);
      last[zero - 1] = 2;  // beside-stream
      seen = stream.read();
      torch::neuron::tcm_free(last);
      break;
    }
    case 12: {
      Owner owner(8);
      owner.data[zero + 8] = 2;  // owner
      break;
    }
  }
  torch::neuron::tcm_free(in);
  torch::neuron::tcm_free(other);
  return seen;
}

float in_odd_blocks(const torch::Tensor& input, int64_t which) {
  float* freed = filled(8);
  torch::neuron::tcm_free(freed);
  float* empty = take(0);
  float* fresh = take(8);
  char* five = static_cast<char*>(torch::neuron::tcm_malloc(5));
  float seen = 0;
  switch (which) {
    case 20: seen = freed[zero]; break;  // read-freed
    case 21: freed[zero + 7] = 2; break;  // write-freed
    case 22: input.tcm_accessor().tensor_to_tcm<float>(freed, 0, 1); break;  // copy-freed
    case 23: seen = empty[zero]; break;  // read-empty
    case 24: empty[zero] = 2; break;  // write-empty
    case 25: five[zero + 5] = 2; break;  // odd-size
    case 26: seen = fresh[zero]; break;
    case 27:
      input.tcm_accessor().tensor_to_tcm<float>(fresh, 0, 1);
      seen = fresh[zero + 1];
      break;
  }
  torch::neuron::tcm_free(five);
  torch::neuron::tcm_free(fresh);
  torch::neuron::tcm_free(empty);
  return seen;
}

float in_tensors(const torch::Tensor& input, int64_t which) {
  torch::Tensor temporary = torch::ones({6}, torch::kFloat);
  torch::Tensor fresh = torch::empty({6}, torch::kFloat);
  const float* argument = input.data_ptr<float>();
  float* values = temporary.data_ptr<float>();
  auto unchecked = input.accessor<float, 1>();
  switch (which) {
    case 30: return argument[zero - 1];  // argument-before
    case 31: return argument[input.numel() + zero];  // argument-past
    case 32: return values[zero - 1];  // temporary-before
    case 33: return values[zero + 6];  // temporary-past
    case 34: values[zero - 1] = 2; return 0;  // temporary-write-before
    case 35: values[zero + 6] = 2; return 0;  // temporary-write-past
    case 36: return fresh.data_ptr<float>()[zero];
    case 37: return unchecked[zero - 1];  // accessor-before
    case 38: return unchecked[input.numel() + zero];  // accessor-past
  }
  return 0;
}

}  // namespace

torch::Tensor fault(const torch::Tensor& input, int64_t which) {
  TORCH_CHECK(input.dim() == 1 && input.numel() > 0, "one dimension");
  const float seen = which < 20 ? in_blocks(input, which) : which < 30 ? in_odd_blocks(input, which) : in_tensors(input, which);
  return torch::full(input.sizes(), seen, torch::kFloat);
}
