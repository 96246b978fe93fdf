// Exchange with the host: one request and one reply in shared memory, and pipes to wake the side that sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#include "neurontools/abi.hpp"

namespace worker {

struct Mailbox {
  std::atomic<std::uint32_t> requested;  // number of the newest request, written by the host
  std::atomic<std::uint32_t> host_sleeps;
  std::atomic<std::uint32_t> host_wake_up_ns;  // how long the host takes to wake up, 0 if it never slept
  std::uint32_t reserved;
  std::atomic<std::uint64_t> woken_ns;  // when the host last woke the worker
  std::uint32_t host_line[10];  // each side writes its own cache line
  std::atomic<std::uint32_t> accepted;  // the last request that the worker accepted
  std::atomic<std::uint32_t> answered;
  std::atomic<std::uint32_t> worker_sleeps;
  std::uint32_t plain;  // the reply has only counters: the call succeeded without warnings
  std::atomic<std::uint64_t> answered_ns;  // when the worker answered
  std::atomic<std::uint32_t> worker_wake_up_ns;
  std::uint32_t worker_line[9];
  neurontools::abi::Request request;
  neurontools::abi::Reply reply;
};

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && sizeof(std::atomic<std::uint64_t>) == 8 &&
                  ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
              "processes share these");

/// Map the mailbox; false on failure.
bool open_mailbox();
/// Wait for the next request and copy it; false when the host has ended.
bool receive(neurontools::abi::Request& request);
/// Send a reply. Also called in signal handlers.
void send(const neurontools::abi::Reply& reply, bool plain);

}  // namespace worker
