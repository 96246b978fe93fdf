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

// A host that calls in a loop sends the next request within this time, unless it slept; polling is cheaper than a wake-up
// then.
constexpr std::uint64_t kLookingNs = 40000;
constexpr std::uint64_t kWakeUpMaxNs = 100000;  // longer ones are those of a busy computer
constexpr std::uint32_t kSkippedLooksMax = 64;

Mailbox* mailbox = nullptr;
bool may_look = false;
bool host_is_quick = false;
std::uint64_t sent_ns = 0;
std::uint64_t woken_ns = 0;
std::uint32_t failed_looks = 0;
std::uint32_t skipped_looks = 0;

std::uint64_t looking_ns() { return kLookingNs + 2 * mailbox->host_wake_up_ns.load(std::memory_order_relaxed); }

bool is_there() { return mailbox->requested.load(std::memory_order_acquire) != mailbox->accepted.load(std::memory_order_relaxed); }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Poll for a request; less often after failures, because a busy computer needs the processor for the host.
bool look() {
  if (skipped_looks != 0) {
    --skipped_looks;
    return false;
  }
  const std::uint64_t limit_ns = looking_ns();
  do {
    sched_yield();  // the host may need this processor
    for (int turns = 0; turns < 64; ++turns) {
      if (is_there()) {
        failed_looks = 0;
        return true;
      }
      relax();
    }
  } while (now_ns() - sent_ns < limit_ns);
  if ((1u << failed_looks) < kSkippedLooksMax) ++failed_looks;
  skipped_looks = 1u << failed_looks;
  return false;
}

void note_wake_up() {
  woken_ns = mailbox->woken_ns.load(std::memory_order_relaxed);
  const std::uint64_t known_ns = mailbox->worker_wake_up_ns.load(std::memory_order_relaxed);
  std::uint64_t took_ns = now_ns() - woken_ns;
  if (took_ns > kWakeUpMaxNs) took_ns = kWakeUpMaxNs;
  const std::uint64_t mean_ns = known_ns == 0 ? took_ns : (3 * known_ns + took_ns) / 4;
  mailbox->worker_wake_up_ns.store(static_cast<std::uint32_t>(mean_ns), std::memory_order_relaxed);
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
    if (is_there()) {
      note_wake_up();
      break;
    }
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
  const bool looks = host_is_quick && look();
  if (!looks && !sleep_until_called()) return false;
  const std::uint64_t called_ns = woken_ns > sent_ns ? woken_ns : now_ns();  // not when this process woke up
  host_is_quick = may_look && sent_ns != 0 && called_ns - sent_ns < looking_ns();
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
  sent_ns = now_ns();
  mailbox->answered_ns.store(sent_ns, std::memory_order_relaxed);
  mailbox->answered.store(mailbox->accepted.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  while (mailbox->host_sleeps.load(std::memory_order_seq_cst) != 0 && write(kReplyFd, "", 1) < 0 && errno == EINTR) {
  }
}

}  // namespace worker
