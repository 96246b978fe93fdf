// Errors: checks of the simulated engine call fail(), user code uses TORCH_CHECK.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "neurontools/message.hpp"

namespace c10 {

class Error : public std::exception {
 public:
  Error(std::string kind, std::string message) : kind_(std::move(kind)), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const char* kind() const noexcept { return kind_.c_str(); }

 private:
  std::string kind_;
  std::string message_;
};

}  // namespace c10

// Calls from several lines must not be merged: each fault is reported at its line.
#if defined(__clang__)
#define NEURONTOOLS_OWN_LINE __attribute__((nomerge))
#else
#define NEURONTOOLS_OWN_LINE
#endif

namespace neurontools {

/// Throw c10::Error; `kind` is the failed check, one word.
[[noreturn]] void fail(const char* kind, const char* format, ...)
    __attribute__((format(printf, 2, 3), cold, noinline)) NEURONTOOLS_OWN_LINE;

/// Add a warning to the result of the running call.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2), cold, noinline));

/// Fail like TORCH_CHECK, which reports the condition if there is no message.
[[noreturn]] void check_failed(const char* condition, const std::string& message)
    __attribute__((cold, noinline)) NEURONTOOLS_OWN_LINE;

}  // namespace neurontools

#define TORCH_CHECK(condition, ...)                                                       \
  do {                                                                                    \
    if (!(condition))                                                                     \
      ::neurontools::check_failed(#condition, ::neurontools::concatenate(__VA_ARGS__));   \
  } while (false)
