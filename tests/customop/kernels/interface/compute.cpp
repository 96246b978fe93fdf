// Every item of the interface, as a program says it; each function returns 1 where all of its items do what they should.
// The marks "// [item]" are those of docs/reference/customop-api.md.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

#include <cassert>
#include <cstdint>
#include <cstdio>

namespace interface_test {

inline torch::Tensor answer(bool good) { return torch::full({1}, good ? 1 : 0, torch::kFloat); }

inline bool all_equal(const torch::Tensor& tensor, float value) {
  const torch::Tensor wide = torch::mul(tensor, 1.0);
  if (wide.scalar_type() != torch::kFloat) return all_equal(torch::add(torch::zeros(tensor.sizes()), tensor), value);
  const float* data = wide.data_ptr<float>();
  for (std::int64_t i = 0; i < wide.numel(); ++i)
    if (!(data[i] > value - 0.01f && data[i] < value + 0.01f)) return false;
  return wide.numel() > 0;
}

template <typename T>
bool has_dtype(c10::ScalarType type) {
  torch::Tensor tensor = torch::full({3}, 2, type);
  return tensor.accessor<T, 1>()[2] == static_cast<T>(2) && all_equal(tensor, 2) && tensor.element_size() == sizeof(T);
}

}  // namespace interface_test

torch::Tensor dtypes(const torch::Tensor&) {
  using interface_test::has_dtype;
  bool good = has_dtype<float>(torch::kFloat);         // [kFloat]
  good = good && has_dtype<c10::BFloat16>(torch::kBFloat16);  // [kBFloat16]
  good = good && has_dtype<c10::Half>(torch::kHalf);   // [kHalf]
  good = good && has_dtype<std::int32_t>(torch::kInt);      // [kInt]
  good = good && has_dtype<std::int8_t>(torch::kChar);      // [kChar]
  good = good && has_dtype<std::int16_t>(torch::kShort);    // [kShort]
  good = good && has_dtype<std::uint8_t>(torch::kByte);     // [kByte]
  return interface_test::answer(good);
}

torch::Tensor factories(const torch::Tensor& input) {
  using interface_test::all_equal;
  const c10::TensorOptions options(torch::kInt);
  const c10::IntArrayRef sizes = input.sizes();
  bool good = torch::empty({2, 3}, torch::kFloat).sizes() == torch::IntArrayRef({2, 3});  // [empty]
  good = good && all_equal(torch::full(sizes, 2.5, torch::kFloat), 2.5f);                  // [full]
  good = good && all_equal(torch::zeros(input.sizes(), options), 0);                       // [zeros]
  good = good && all_equal(torch::ones({4}, input.options()), 1);                          // [ones]
  const torch::Tensor eye = torch::eye(2, 3, torch::kFloat);                               // [eye]
  const auto square = eye.accessor<float, 2>();
  return interface_test::answer(good && square[1][1] == 1 && square[0][1] == 0 && eye.size(1) == 3);
}

torch::Tensor operations(const torch::Tensor&) {
  using interface_test::all_equal;
  torch::Tensor two = torch::full({5}, 2, torch::kFloat);
  torch::Tensor out = torch::empty({5}, torch::kFloat);
  const torch::Scalar three(3);
  bool good = all_equal(torch::abs(two), 2) && all_equal(torch::abs_out(out, two), 2);                 // [abs]
  good = good && all_equal(torch::ceil(two), 2) && all_equal(torch::ceil_out(out, two), 2);            // [ceil]
  good = good && all_equal(torch::floor(two), 2) && all_equal(torch::floor_out(out, two), 2);          // [floor]
  good = good && all_equal(torch::sin(two), 0.909f) && all_equal(torch::sin_out(out, two), 0.909f);    // [sin]
  good = good && all_equal(torch::cos(two), -0.416f) && all_equal(torch::cos_out(out, two), -0.416f);  // [cos]
  good = good && all_equal(torch::tan(two), -2.185f) && all_equal(torch::tan_out(out, two), -2.185f);  // [tan]
  good = good && all_equal(torch::log(two), 0.693f) && all_equal(torch::log_out(out, two), 0.693f);    // [log]
  good = good && all_equal(torch::log2(two), 1) && all_equal(torch::log2_out(out, two), 1);            // [log2]
  good = good && all_equal(torch::log10(two), 0.301f) && all_equal(torch::log10_out(out, two), 0.301f);  // [log10]
  good = good && all_equal(torch::exp(two), 7.389f) && all_equal(torch::exp_out(out, two), 7.389f);    // [exp]
  good = good && all_equal(torch::pow(two, three), 8) && all_equal(torch::pow(three, two), 9) &&       // [pow]
         all_equal(torch::pow(two, two), 4) && all_equal(torch::pow_out(out, two, three), 8) &&
         all_equal(torch::pow_out(out, three, two), 9) && all_equal(torch::pow_out(out, two, two), 4);
  good = good && all_equal(torch::clamp(two, three, 4), 3) && all_equal(torch::clamp_out(out, two, 0, 1), 1);  // [clamp]
  good = good && all_equal(torch::add(two, two), 4) && all_equal(torch::add(two, two, 2), 6) &&        // [add]
         all_equal(torch::add(two, three), 5) && all_equal(torch::add(two, three, 2), 8) &&
         all_equal(torch::add_out(out, two, two), 4) && all_equal(torch::add_out(out, two, three, 2), 8);
  good = good && all_equal(torch::sub(two, two), 0) && all_equal(torch::sub(two, two, 2), -2) &&       // [sub]
         all_equal(torch::sub(two, three), -1) && all_equal(torch::sub_out(out, two, two), 0) &&
         all_equal(torch::sub_out(out, two, three, 2), -4);
  good = good && all_equal(torch::mul(two, two), 4) && all_equal(torch::mul(two, three), 6) &&         // [mul]
         all_equal(torch::mul_out(out, two, two), 4) && all_equal(torch::mul_out(out, two, three), 6);
  good = good && all_equal(torch::div(two, two), 1) && all_equal(torch::div(two, 4), 0.5f) &&          // [div]
         all_equal(torch::div_out(out, two, two), 1) && all_equal(torch::div_out(out, two, 4), 0.5f);
  return interface_test::answer(good);
}

torch::Tensor bits(const torch::Tensor&) {
  using interface_test::all_equal;
  const torch::Tensor six = torch::full({5}, 6, torch::kInt);
  torch::Tensor out = torch::empty({5}, torch::kInt);
  const torch::Scalar three(3);
  bool good = all_equal(torch::bitwise_and(six, six), 6) && all_equal(torch::bitwise_and(six, three), 2) &&  // [bitwise_and]
              all_equal(torch::bitwise_and(three, six), 2) && all_equal(torch::bitwise_and_out(out, six, three), 2) &&
              all_equal(torch::bitwise_and_out(out, three, six), 2) && all_equal(torch::bitwise_and_out(out, six, six), 6);
  good = good && all_equal(torch::bitwise_or(six, six), 6) && all_equal(torch::bitwise_or(six, three), 7) &&  // [bitwise_or]
         all_equal(torch::bitwise_or(three, six), 7) && all_equal(torch::bitwise_or_out(out, six, three), 7) &&
         all_equal(torch::bitwise_or_out(out, three, six), 7) && all_equal(torch::bitwise_or_out(out, six, six), 6);
  good = good && all_equal(torch::bitwise_not(six), -7) && all_equal(torch::bitwise_not_out(out, six), -7) &&  // [bitwise_not]
         all_equal(torch::bitwise_not(out, six), -7);
  return interface_test::answer(good);
}

torch::Tensor members(const torch::Tensor& input) {
  torch::Tensor tensor = torch::zeros({2, 3}, torch::kFloat);
  const torch::Tensor& constant = tensor;
  auto write = tensor.accessor<float, 2>();  // [accessor]
  write[1][2] = 7;
  bool good = constant.accessor<float, 2>()[1][2] == 7 && write.size(1) == 3;
  const torch::Tensor same = tensor;  // [operator=]
  torch::Tensor other;
  other = same;
  other = torch::Tensor(tensor);
  other.accessor<float, 2>()[0][0] = 1;
  good = good && write[0][0] == 1;
  good = good && tensor.fill_(4).numel() == 6 && write[0][0] == 4;                                   // [fill_]
  good = good && tensor.numel() == 6 && tensor.sizes() == c10::IntArrayRef({2, 3}) && tensor.sizes()[1] == 3;  // [sizes]
  good = good && tensor.size(0) == 2 && tensor.size(-1) == 3 && tensor.dim() == 2;                   // [size]
  good = good && tensor.stride(0) == 3 && tensor.strides()[1] == 1 && tensor.is_contiguous();        // [strides]
  good = good && tensor.scalar_type() == torch::kFloat && tensor.dtype() == input.dtype();           // [dtype]
  good = good && tensor.nbytes() == 24 && tensor.element_size() == 4 && tensor.data_ptr<float>()[5] == 4;  // [data_ptr]
  const torch::Scalar number(2.5);
  good = good && number.to<int>() == 2 && number.toDouble() > 2.4 && number.isFloatingPoint();       // [Scalar]
  TORCH_CHECK(tensor.sizes() == same.sizes(), "sizes ", tensor.sizes(), " of ", tensor.scalar_type());  // [TORCH_CHECK]
  assert(good);                                                                                      // [assert]
  std::printf("%d\n", static_cast<int>(tensor.numel()));                                             // [printf]
  return interface_test::answer(good);
}

torch::Tensor streams(const torch::Tensor& input) {
  torch::Tensor copy = torch::zeros(input.sizes(), torch::kFloat);
  {
    torch::TensorReadStreamAccessor<float> reader = input.read_stream_accessor<float>();   // [read_stream_accessor]
    torch::TensorWriteStreamAccessor<float> writer = copy.write_stream_accessor<float>();  // [write_stream_accessor]
    for (std::int64_t i = 0; i < input.numel(); ++i) writer.write(reader.read());          // [read] [write]
    writer.close();                                                                        // [close]
  }
  using Policy = torch::CoherencyEnforcer::Policy;
  bool good = copy.get_accessor_coherence_policy() == Policy::COHERENT;  // [COHERENT]
  copy.set_accessor_coherence_policy(Policy::INCOHERENT_VERBOSE);        // [INCOHERENT_VERBOSE]
  good = good && copy.get_accessor_coherence_policy() == Policy::INCOHERENT_VERBOSE;
  copy.set_accessor_coherence_policy(Policy::INCOHERENT_QUIET);  // [INCOHERENT_QUIET]
  auto writer = copy.write_stream_accessor<float>();
  copy.accessor<float, 1>()[0] = input.accessor<float, 1>()[0];
  return interface_test::answer(good && copy.accessor<float, 1>()[1] == input.accessor<float, 1>()[1]);
}

torch::Tensor tcm(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();  // [get_dst_tensor]
  const torch::TensorTcmAccessor<true> source = input.tcm_accessor();  // [tcm_accessor]
  const torch::TensorTcmAccessor<false> target = output.tcm_accessor();
  float* block = static_cast<float*>(torch::neuron::tcm_malloc(4096));  // [tcm_malloc]
  bool good = block != nullptr && torch::neuron::tcm_malloc(16384) == nullptr;
  source.tensor_to_tcm<float>(block, 1, 2);  // [tensor_to_tcm]
  good = good && get_cpu_id() == 0 && get_cpu_count() == 1;  // [get_cpu_id] [get_cpu_count]
  block[0] = good && block[0] > 0.9f ? 1 : 0;
  target.tcm_to_tensor<float>(block, 0, 1);  // [tcm_to_tensor]
  torch::neuron::tcm_free(nullptr);
  torch::neuron::tcm_free(block);  // [tcm_free]
  return input;
}

torch::Tensor parameters(torch::Tensor a, const torch::Tensor& b, torch::Tensor& c, const torch::Scalar& s, double d,
                         std::int64_t i) {  // [torch::Tensor] [torch::Scalar] [double] [int64_t]
  return interface_test::answer(a.numel() == b.numel() && c.numel() == b.numel() && s.toDouble() > d && i == 3);
}
