// Prints messages as TORCH_CHECK makes them, once with streams at hand (-DSTREAMS) and once without.
#if defined(STREAMS)
#include <iomanip>
#include <sstream>
#endif
#include <torch/torch.h>

#include <cstdio>

enum Number { kFive = 5 };
enum class Scoped { kOne };

template <typename... Parts>
void show(const Parts&... parts) {
  std::puts(neurontools::concatenate(parts...).c_str());
}

#if defined(STREAMS)
std::ostream& operator<<(std::ostream& stream, Scoped) { return stream << "one"; }

void show_what_needs_streams() {
  show("x", std::hex, 255, std::setw(4), Scoped::kOne, torch::IntArrayRef{2, 3}, torch::kInt, torch::Half(1.5f));
}
#elif defined(SCOPED)
void show_what_needs_streams() { show("x", Scoped::kOne); }
#else
void show_what_needs_streams() {}
#endif

int main() {
  const void* const nowhere = nullptr;
  show("text", std::string(" string "), 'c', static_cast<signed char>('d'), static_cast<unsigned char>('e'));
  show(true, ' ', false, ' ', short{-1}, ' ', -2, ' ', -3L, ' ', -4LL, ' ', 5u, ' ', 6UL, ' ', ~0ULL);
  show(1.5f, ' ', 1.0 / 3, ' ', 12345678.0, ' ', 1e-9L, ' ', -0.0, ' ', 1 / 0.0f);
  show(nowhere, ' ', reinterpret_cast<const int*>(16), ' ', kFive, ' ', Number::kFive);
  show(torch::kBFloat16, ' ', torch::IntArrayRef{2, 3}, torch::IntArrayRef(), ' ', torch::Half(0.5f), torch::BFloat16(2.0f));
  show_what_needs_streams();
}
