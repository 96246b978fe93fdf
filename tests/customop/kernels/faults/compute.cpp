// One kernel, many ways to go wrong; `which` chooses. The marks "// <name>" are read by the tests for line numbers.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

static volatile int zero = 0;

// On one line: which of its instructions comes to the guard page first depends on where the stack begins.
// clang-format off
static int recurse(volatile int* depth) { volatile int here[256]; here[0] = *depth + 1; return recurse(here) + here[0]; }  // recursion
// clang-format on

static void spin() {
  volatile int turns = 0;
  while (zero == 0) turns = turns + 1;  // loop
}

static torch::Tensor copy_of(const torch::Tensor& input) {
  torch::Tensor output = torch::empty(input.sizes(), torch::kFloat);
  auto x = input.accessor<float, 1>();
  auto y = output.accessor<float, 1>();
  for (int64_t i = 0; i < input.numel(); ++i) y[i] = x[i];
  return output;
}

static float* piece(size_t nbytes) { return static_cast<float*>(torch::neuron::tcm_malloc(nbytes)); }  // malloc

static torch::Tensor memory_fault(const torch::Tensor& input, torch::Tensor scratch, int64_t which) {
  float* pointer = scratch.data_ptr<float>();
  float* constant = input.data_ptr<float>();
  switch (which) {
    case 0: *static_cast<volatile float*>(reinterpret_cast<float*>(static_cast<long>(zero))) = 1; break;  // null
    case 1: constant[0] = 5; break;  // const
    case 2: static_cast<volatile float*>(pointer)[scratch.numel()] = 5; break;  // past
    case 3: recurse(&zero); break;
    case 4: scratch.accessor<float, 1>()[scratch.numel()] = 1; break;  // index
    case 5: scratch.accessor<float, 1>()[-1] = 1; break;  // negative
  }
  return copy_of(input);
}

static torch::Tensor tcm_fault(const torch::Tensor& input, int64_t which) {
  auto tcm = input.tcm_accessor();
  float* block = piece(4096);
  float stack[16];
  switch (which) {
    case 20: block[1024] = 1; break;
    case 21: tcm.tensor_to_tcm<float>(block + 1020, 0, 8); break;  // tcm-copy
    case 22: tcm.tensor_to_tcm<float>(piece(16384), 0, 8); break;  // tcm-null
    case 23: torch::neuron::tcm_free(stack); break;  // tcm-foreign
    case 24: return copy_of(input);
    case 25: tcm.tensor_to_tcm<float>(block, input.numel() - 1, 2); break;  // tcm-beyond
    case 26: tcm.tensor_to_tcm<int>(reinterpret_cast<int*>(block), 0, 1); break;
    case 27: block[-1] = 1; break;
    case 28: tcm.tensor_to_tcm<float>(stack, 0, 8); break;  // tcm-stack
    case 29: {
      torch::Tensor output = get_dst_tensor();
      output.tcm_accessor().tcm_to_tensor<float>(block, 0, output.numel() - 3);  // partly
    }
  }
  torch::neuron::tcm_free(block);
  return copy_of(input);
}

static torch::Tensor stream_fault(const torch::Tensor& input, torch::Tensor scratch, int64_t which) {
  auto reader = input.read_stream_accessor<float>();
  switch (which) {
    case 40:
      for (int64_t i = 0; i <= input.numel(); ++i) reader.read();  // stream-end
      break;
    case 41:
      reader.close();
      reader.read();  // stream-closed
      break;
    case 42: {
      auto one = scratch.write_stream_accessor<float>();
      auto two = scratch.write_stream_accessor<float>();  // two-writers
      break;
    }
    case 43: {
      auto writer = scratch.write_stream_accessor<float>();
      writer.write(1);
      scratch.accessor<float, 1>()[0] = 2;  // coherence
      break;
    }
    case 44: {
      scratch.set_accessor_coherence_policy(torch::CoherencyEnforcer::Policy::INCOHERENT_VERBOSE);
      auto writer = scratch.write_stream_accessor<float>();
      scratch.accessor<float, 1>()[0] = 2;
      break;
    }
    case 45: {
      scratch.set_accessor_coherence_policy(torch::CoherencyEnforcer::Policy::INCOHERENT_QUIET);
      auto writer = scratch.write_stream_accessor<float>();
      scratch.accessor<float, 1>()[0] = 2;
      break;
    }
    case 46: {
      auto one = input.read_stream_accessor<float>();
      auto two = input.read_stream_accessor<float>();
      auto three = input.read_stream_accessor<float>();
      auto four = input.read_stream_accessor<float>();
      TORCH_CHECK(one.read() == two.read() && three.read() == four.read(), "streams disagree");
      break;
    }
  }
  return copy_of(input);
}

// The test waits until no process has its pipe open any more.
static int open_pipe() { return open(std::getenv("TEST_PIPE"), O_WRONLY); }

static void announce(int pipe) {
  if (write(pipe, "!", 1) != 1) abort();
}

static void process_fault(int64_t which) {
  switch (which) {
    case 100:
      for (int fd = 3; fd < 64; ++fd) close(fd);
      spin();
      break;
    case 101:
      for (int fd = 3; fd < 64; ++fd)
        if (ftruncate(fd, 0) == 0) continue;  // some are pipes, some are sealed
      break;
    case 102: announce(open_pipe()); execl("/bin/sleep", "sleep", "1000", nullptr); break;
    case 103: kill(getppid(), SIGKILL); spin(); break;
    default: {  // a child: 104 an ordinary one, 105 a daemon, 106 and 107 the same beside a worker that ends
      const int pipe = open_pipe();
      if (fork() != 0) break;
      if (which % 2 == 1 && setsid() >= 0 && fork() != 0) _Exit(0);
      announce(pipe);
      for (;;) pause();
    }
  }
  if (which >= 106) raise(SIGKILL);
}

static torch::Tensor ending(const torch::Tensor& input, int64_t which) {
  switch (which) {
    case 60: abort();  // abort
    case 61: exit(7);  // exit
    case 62: assert(input.numel() == 0);  // assert
    case 63: spin(); break;
    case 64: zero = 7 / zero; break;  // division
    case 65: __builtin_trap();  // illegal
    case 66: _exit(3);  // direct-exit
    case 67: raise(SIGKILL);
    case 68: throw std::runtime_error("went wrong");  // throw
    case 69: throw 5;
    case 70: TORCH_CHECK(input.numel() == 0, "expected nothing, got ", input.numel(), " elements"); break;  // check
    case 71: std::vector<int>().at(3); break;
    case 72: std::printf("%d elements\n", static_cast<int>(input.numel())); break;
    case 73:
      for (int i = 0; i < 1000; ++i) std::printf("line %d\n", i);
      break;
    case 74: std::fprintf(stderr, "a complaint\n"); break;
  }
  return copy_of(input);
}

static torch::Tensor typing(const torch::Tensor& input, int64_t which) {
  torch::Tensor nothing;
  switch (which) {
    case 80: input.accessor<int, 1>(); break;  // dtype
    case 81: input.accessor<float, 3>(); break;  // rank
    case 82: return torch::zeros({1, 2, 3}, torch::kFloat);
    case 83: return torch::zeros(input.sizes(), torch::kInt);
    case 84: return nothing;
    case 85: return torch::zeros(input.sizes(), torch::kDouble);  // double
    case 86: torch::add(input, torch::zeros({2, 2}, torch::kFloat)); break;  // broadcast
  }
  return copy_of(input);
}

torch::Tensor fault(const torch::Tensor& input, torch::Tensor scratch, int64_t which) {  // kernel
  if (which < 20) return memory_fault(input, scratch, which);
  if (which < 40) return tcm_fault(input, which);
  if (which < 60) return stream_fault(input, scratch, which);
  if (which < 80) return ending(input, which);
  if (which >= 100) process_fault(which);
  return typing(input, which);
}

torch::Tensor copy(const torch::Tensor& input) { return copy_of(input); }

torch::Tensor nap(const torch::Tensor& input, double seconds) {
  usleep(static_cast<useconds_t>(seconds * 1e6));
  return copy_of(input);
}

torch::Tensor bad_shape_kernel(const torch::Tensor& input, int64_t) {
  return torch::ones({input.size(0), 2}, torch::kHalf);
}
