// Backoff: how a thread passes the time between two looks that found nothing.
//
// First it spins (a hand-over between cores takes under a microsecond), then it yields the core
// (ranks may outnumber cores), then it sleeps, longer and longer up to a bound: a long wait must
// not burn a core.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace accl {

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // `spins`: looks before the first yield; `patience`: time of yielding before the first sleep.
  Backoff(int spins, std::chrono::microseconds patience) : spins_(spins), patience_(patience) {}

  void reset() noexcept {
    looks_ = 0;
    sleep_ = kShortestSleep;
  }

  void pause() {
    if (++looks_ <= spins_) {
      clock::pause();
      return;
    }
    if (looks_ == spins_ + 1) yielding_since_ = Clock::now();
    // The clock is asked at every 16th yield only.
    if (looks_ % 16 != 0 || Clock::now() - yielding_since_ < patience_) {
      ::sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, kLongestSleep);
    looks_ |= 15;  // sleep again at the next look
  }

 private:
  static constexpr std::chrono::microseconds kShortestSleep{20};
  static constexpr std::chrono::microseconds kLongestSleep{200};
  int spins_;
  std::chrono::microseconds patience_;
  int looks_ = 0;
  Clock::time_point yielding_since_;
  std::chrono::microseconds sleep_ = kShortestSleep;
};

}  // namespace accl
