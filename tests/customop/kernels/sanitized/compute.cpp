// Faults for the sanitizers; the marks "// <name>" are read by the tests for line numbers.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

#include <climits>
#include <vector>

static volatile int eight = 8;

static void fault(const torch::Tensor& input, int64_t which) {
  std::vector<float> heap(8);
  volatile float* past = input.data_ptr<float>();
  volatile float stack[8];
  volatile float seen = 0;
  volatile int number = INT_MAX;
  switch (which) {
    case 1: heap.data()[eight] = 1; break;  // heap
    case 2: seen = past[eight]; break;  // past
    case 3: heap.data()[eight - 9] = 1; break;  // before
    case 4: {
      float* freed = new float[8];
      delete[] freed;
      seen = static_cast<volatile float*>(freed)[0];  // freed
      break;
    }
    case 5: stack[eight] = 1; break;  // stack
    case 6: number = number + eight; break;  // overflow
    case 7: number = 1 << (eight * 5); break;  // shift
    case 8: past[0] = 5; break;
    case 10: seen = past[5 - eight]; break;  // far
    case 9: {
      volatile float* block = static_cast<float*>(torch::neuron::tcm_malloc(64));
      block[2 * eight] = 1;  // block
      torch::neuron::tcm_free(const_cast<float*>(block));
      break;
    }
  }
  (void)seen;
}

torch::Tensor copy(const torch::Tensor& input, int64_t which) {
  fault(input, which);
  torch::Tensor output = torch::empty(input.sizes(), torch::kFloat);
  auto x = input.accessor<float, 1>();
  auto y = output.accessor<float, 1>();
  for (int64_t i = 0; i < input.numel(); ++i) y[i] = x[i];
  return output;
}
