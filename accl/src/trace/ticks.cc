#include "trace/ticks.h"

#include <fstream>
#include <string>

namespace accl::trace {

namespace {

constexpr int kAnchorTries = 5;

bool kernel_trusts_counter() {
#if defined(__x86_64__)
  // The kernel drops the tsc as its clock where it is not synchronous over cores or not constant in
  // rate.
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return source == "tsc";
#elif defined(__aarch64__)
  return true;  // the architecture promises one system counter
#else
  return false;
#endif
}

template <class Clock>
std::int64_t ns_of() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::int64_t steady_ns() noexcept { return ns_of<std::chrono::steady_clock>(); }

bool counter_is_trusted() noexcept {
  static const bool trusted = [] {
    try {
      return kernel_trusts_counter();
    } catch (...) {
      return false;  // no memory for a file buffer: the steady clock serves too
    }
  }();
  return trusted;
}

TickClock::TickClock() noexcept : trusted_(counter_is_trusted()), made_(anchor()) {}

Anchor TickClock::anchor() const noexcept {
  // A thread that loses its processor between two readings gives a wrong pair: the tightest of a
  // few counts.
  Anchor best;
  std::uint64_t best_width = ~std::uint64_t{0};
  for (int i = 0; i < kAnchorTries; ++i) {
    const std::uint64_t before = now();
    const std::int64_t steady = steady_ns();
    const std::int64_t wall = ns_of<std::chrono::system_clock>();
    const std::uint64_t width = now() - before;
    if (width >= best_width) continue;
    best_width = width;
    best = {before, steady, wall};
  }
  return best;
}

std::int64_t TickClock::to_steady_ns(std::uint64_t ticks, const Anchor& later) const noexcept {
  if (!trusted_) return static_cast<std::int64_t>(ticks);
  const auto span_ticks = static_cast<std::int64_t>(later.ticks - made_.ticks);
  if (span_ticks <= 0) return made_.steady_ns;
  const auto passed = static_cast<long double>(static_cast<std::int64_t>(ticks - made_.ticks));
  const auto span_ns = static_cast<long double>(later.steady_ns - made_.steady_ns);
  return made_.steady_ns +
         static_cast<std::int64_t>(passed * span_ns / static_cast<long double>(span_ticks));
}

}  // namespace accl::trace
