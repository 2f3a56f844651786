// Ticks: the cheapest clock that is good enough for a trace, and its translation to nanoseconds.
//
// Three steady_clock readings an operation would cost more than the whole rest of a record. Where
// the processor has a counter that the kernel itself trusts as its clock, that counter is read
// instead; two anchors, one when the trace was made and one when it is read, translate it: every
// time that was recorded lies between them, so the translation interpolates and no frequency has to
// be known.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace accl::trace {

std::int64_t steady_ns() noexcept;

// True where the processor's counter may be read in place of the steady clock. Constant in a
// process.
bool counter_is_trusted() noexcept;

inline std::uint64_t read_counter() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(steady_ns());
#endif
}

// One moment on three clocks.
struct Anchor {
  std::uint64_t ticks = 0;
  std::int64_t steady_ns = 0;
  std::int64_t unix_ns = 0;
};

class TickClock {
 public:
  TickClock() noexcept;

  std::uint64_t now() const noexcept {
    return trusted_ ? read_counter() : static_cast<std::uint64_t>(steady_ns());
  }

  Anchor anchor() const noexcept;

  // On the steady clock; `later` is an anchor taken after `ticks` was read.
  std::int64_t to_steady_ns(std::uint64_t ticks, const Anchor& later) const noexcept;

 private:
  bool trusted_;
  Anchor made_;
};

}  // namespace accl::trace
