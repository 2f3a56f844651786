// Clock: the processor's hint that a loop is waiting.
#pragma once

namespace accl::clock {

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace accl::clock
