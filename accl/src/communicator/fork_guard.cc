#include "communicator/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace accl {

namespace {

std::atomic<unsigned> generation{0};

// At load time, so that no fork is missed.
const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });

}  // namespace

unsigned fork_generation() noexcept {
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace accl
