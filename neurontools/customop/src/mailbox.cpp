// Requests and replies in shared memory. The waiting side polls for some microseconds, then sleeps.
#include "mailbox.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "worker.hpp"

namespace worker {

namespace {

using neurontools::abi::Reply;
using neurontools::abi::Request;

// A host that calls in a loop sends the next request within this time; polling is cheaper than a wake-up then.
constexpr std::uint64_t kLookingNs = 40000;

Mailbox* mailbox = nullptr;
bool may_look = false;
bool host_is_quick = false;
std::uint64_t sent_ns = 0;

bool is_there() { return mailbox->requested.load(std::memory_order_acquire) != mailbox->accepted.load(std::memory_order_relaxed); }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool look() {
  do {
    for (int turns = 0; turns < 64; ++turns) {
      if (is_there()) return true;
      relax();
    }
  } while (now_ns() - sent_ns < kLookingNs);
  return false;
}

// On other processors a number may be visible before its request, unless a system call separates them.
#if defined(__x86_64__)
constexpr bool kInOrder = true;
#else
constexpr bool kInOrder = false;
#endif

bool sleep_until_called() {
  char bytes[64];
  mailbox->worker_sleeps.store(1, std::memory_order_seq_cst);
  while (!(kInOrder && is_there())) {
    const ssize_t got = read(kRequestFd, bytes, sizeof bytes);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (is_there()) break;
  }
  mailbox->worker_sleeps.store(0, std::memory_order_relaxed);
  return true;
}

// Without the texts, which are empty: unread memory need not be moved between processors.
void hand_over_plain(const Reply& reply) {
  Reply& place = mailbox->reply;
  std::memcpy(&place, &reply, offsetof(Reply, frames));
  place.kind[0] = place.message[0] = place.warnings[0] = '\0';
  place.shape = reply.shape;
  std::memcpy(place.counters, reply.counters, sizeof reply.counters);
}

}  // namespace

std::uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1000000000u + static_cast<std::uint64_t>(time.tv_nsec);
}

bool open_mailbox() {
  void* place = mmap(nullptr, sizeof(Mailbox), PROT_READ | PROT_WRITE, MAP_SHARED, kMailboxFd, 0);
  if (place == MAP_FAILED) return false;
  mailbox = static_cast<Mailbox*>(place);
  cpu_set_t processors;
  may_look = kInOrder && sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) > 1;
  return true;
}

bool receive(Request& request) {
  if (!(host_is_quick && look()) && !sleep_until_called()) return false;
  host_is_quick = may_look && sent_ns != 0 && now_ns() - sent_ns < kLookingNs;
  std::memcpy(&request, &mailbox->request, offsetof(Request, arguments));
  if (request.magic != neurontools::abi::kMagic || request.argument_count > neurontools::abi::kMaxArguments) return false;
  std::memcpy(request.arguments, mailbox->request.arguments, request.argument_count * sizeof request.arguments[0]);
  mailbox->accepted.store(mailbox->requested.load(std::memory_order_relaxed), std::memory_order_release);
  return true;
}

void send(const Reply& reply, bool plain) {
  if (plain)
    hand_over_plain(reply);
  else
    mailbox->reply = reply;
  mailbox->plain = plain ? 1 : 0;
  mailbox->answered.store(mailbox->accepted.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  sent_ns = now_ns();
  while (mailbox->host_sleeps.load(std::memory_order_seq_cst) != 0 && write(kReplyFd, "", 1) < 0 && errno == EINTR) {
  }
}

}  // namespace worker
