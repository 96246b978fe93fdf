// How host and worker meet: one request and one reply in shared memory, and pipes to wake who sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#include "neurontools/abi.hpp"

namespace worker {

struct Mailbox {
  std::atomic<std::uint32_t> requested;  // number of the newest request; the host counts
  std::atomic<std::uint32_t> host_sleeps;
  std::uint32_t host_line[14];  // each side writes to a cache line of its own
  std::atomic<std::uint32_t> accepted;  // the request that the worker took last
  std::atomic<std::uint32_t> answered;
  std::atomic<std::uint32_t> worker_sleeps;
  std::uint32_t plain;  // the reply says nothing but that the call succeeded, and its counters
  std::uint32_t worker_line[12];
  neurontools::abi::Request request;
  neurontools::abi::Reply reply;
};

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && ATOMIC_INT_LOCK_FREE == 2, "processes share these");

/// Map the mailbox; false when it cannot be.
bool open_mailbox();
/// Wait for the next request and copy it; false when the host is gone.
bool receive(neurontools::abi::Request& request);
/// Hand over a reply. Also called where a signal is handled.
void send(const neurontools::abi::Reply& reply, bool plain);

}  // namespace worker
