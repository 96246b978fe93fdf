// The flat ABI between the host and a compiled library; `abi.py` mirrors it field by field.
#pragma once

#include <cstdint>

namespace neurontools {
namespace abi {

constexpr std::uint32_t kVersion = 5;
constexpr std::uint32_t kMagic = 0x4f43544e;
constexpr int kMaxArguments = 16;
constexpr int kMaxDim = 8;
constexpr int kMaxFrames = 24;
constexpr int kMaxCores = 8;
constexpr int kOutputSlot = kMaxArguments;
constexpr int kSlots = kMaxArguments + 1;

enum Command : std::uint32_t { kShapeCommand = 1, kRunCommand = 2, kPlacesCommand = 3 };
enum ArgumentKind : std::int32_t { kTensorArgument = 0, kRealArgument = 1, kIntegerArgument = 2 };
// kFailed: the operator failed and the library is usable; kFatal: the process must end.
enum Status : std::int32_t { kOk = 0, kFailed = 1, kFatal = 2 };

struct Tensor {
  std::int64_t sizes[kMaxDim];
  std::int32_t dim;
  std::int32_t dtype;
  std::uint64_t nbytes;
  void* data;
  void* const_data;  // the same bytes through a read-only mapping
};

struct Argument {
  std::int32_t kind;
  std::int32_t reserved;
  double real;
  std::int64_t integer;
  Tensor tensor;
};

// A tensor's location in device memory: the end of a range of whole pages.
struct Place {
  std::uint64_t offset;
  std::uint64_t nbytes;
  std::uint64_t constant;  // the memory belongs to the program and must not be written
};

struct Request {
  std::uint32_t magic;
  std::uint32_t command;
  std::uint32_t callee;
  std::uint32_t argument_count;
  std::uint32_t core_count;
  std::uint32_t capture_stdout;
  std::uint32_t core_order;  // order in which the cores run, see core_at()
  std::uint32_t count_places;  // also count by place in the source; kPlacesCommand reads these counts
  Place places[kSlots];
  Tensor output;
  Argument arguments[kMaxArguments];  // last: only used arguments are sent
};

struct Counters {
  std::uint64_t element_accesses;
  std::uint64_t transfers;  // between HBM and TCM
  std::uint64_t transferred_bytes;
  std::uint64_t moves;  // within HBM: the returned tensor to the output, a fill
  std::uint64_t moved_bytes;
  std::uint64_t computed_bytes;  // results of the tensor functions
};

struct Reply {
  std::uint32_t magic;
  std::int32_t status;
  std::int32_t core;
  std::int32_t signal;
  std::uint64_t elapsed_ns;
  std::uint64_t frame_count;
  std::uint64_t frames[kMaxFrames];
  char kind[32];
  char message[512];
  char warnings[1024];
  Tensor shape;
  Counters counters[kMaxCores];
};

}  // namespace abi
}  // namespace neurontools
