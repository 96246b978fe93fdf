// The ways to write a kernel that the reference describes, as users write them: size_t in brace lists included.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cassert>

#include <neuron/neuron-utils.hpp>
#include <ATen/ATen.h>
#include <torch/extension.h>

torch::Tensor elements(const torch::Tensor& t_in) {
  size_t num_elem = t_in.numel();
  torch::Tensor t_out = torch::zeros({num_elem}, torch::kFloat);
  auto in = t_in.accessor<float, 1>();
  auto out = t_out.accessor<float, 1>();
  for (size_t i = 0; i < num_elem; i++) out[i] = -1 * in[i];
  return t_out;
}

torch::Tensor sum(torch::Tensor t1, torch::Tensor t2) {
  assert(t1.sizes() == t2.sizes());
  torch::Tensor t_out = torch::zeros({t1.numel()}, torch::kFloat);
  auto a = t1.accessor<float, 1>();
  auto b = t2.accessor<float, 1>();
  auto out = t_out.accessor<float, 1>();
  for (int64_t i = 0; i < t1.numel(); i++) out[i] = a[i] + b[i];
  return t_out;
}

torch::Tensor streams(torch::Tensor t1, torch::Tensor t2) {
  torch::Tensor t_out = torch::empty({t1.numel()}, torch::kFloat);
  auto a = t1.read_stream_accessor<float>();
  auto b = t2.read_stream_accessor<float>();
  auto out = t_out.write_stream_accessor<float>();
  for (int64_t i = 0; i < t1.numel(); i++) out.write(a.read() + b.read());
  a.close();
  b.close();
  out.close();
  return t_out;
}

torch::Tensor tcm(const torch::Tensor& t_in) {
  size_t num_elem = t_in.numel();
  torch::Tensor t_out = torch::zeros({num_elem}, torch::kFloat);
  static constexpr size_t buffer_size = 1024;
  float* buffer = (float*)torch::neuron::tcm_malloc(sizeof(float) * buffer_size);
  if (buffer != nullptr) {
    auto in = t_in.tcm_accessor();
    auto out = t_out.tcm_accessor();
    for (size_t i = 0; i < num_elem; i += buffer_size) {
      size_t left = num_elem - i;
      size_t count = left > buffer_size ? buffer_size : left;
      in.tensor_to_tcm<float>(buffer, i, count);
      for (size_t j = 0; j < count; j++) buffer[j] = -buffer[j];
      out.tcm_to_tensor<float>(buffer, i, count);
    }
  }
  torch::neuron::tcm_free(buffer);
  return t_out;
}

torch::Tensor destination(torch::Tensor& t_in) {
  torch::Tensor t_out = get_dst_tensor();
  auto in = t_in.accessor<float, 1>();
  auto out = t_out.accessor<float, 1>();
  for (int64_t i = 0; i < t_in.size(0); i++) out[i] = -in[i];
  return t_out;
}

at::Tensor scaled(at::Tensor t_in, double factor, int64_t offset, const torch::Scalar& more) {
  printf("%d elements, factor %f\n", (int)t_in.numel(), factor);
  return torch::add(torch::mul(t_in, factor), offset + more.toDouble());
}
