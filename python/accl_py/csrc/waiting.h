// What waits of Python share: timeouts in seconds, and looks for signals, so that Ctrl-C works.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "accl/communicator.h"
#include "accl/error.h"
#include "exit_gate.h"

namespace accl::python {

inline constexpr Milliseconds kBetweenSignals{100};

inline Milliseconds milliseconds(double seconds) {
  if (!(seconds >= 0))
    throw InvalidArgument("A timeout is " + std::to_string(seconds) + " s; expected 0 or more.");
  constexpr double kMost = 1e12;
  return Milliseconds{static_cast<std::int64_t>(std::min(seconds * 1e3 + 0.999, kMost))};
}

// Needs the GIL. Raises KeyboardInterrupt where Ctrl-C was pressed.
inline void look_for_signals() {
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

// Waits for a Work or DeviceWork without the GIL; false where the deadline passed first.
template <class AnyWork>
bool wait_for(AnyWork& work,
              std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt) {
  using Clock = std::chrono::steady_clock;
  for (;;) {
    Milliseconds slice = kBetweenSignals;
    if (deadline) {
      const auto left = std::chrono::ceil<Milliseconds>(*deadline - Clock::now());
      slice = std::clamp(left, Milliseconds{0}, slice);
    }
    {
      const Released nogil;
      if (work.wait(slice)) return true;
    }
    look_for_signals();
    if (deadline && Clock::now() >= *deadline) return false;
  }
}

template <class AnyWork>
bool wait_seconds(AnyWork& work, std::optional<double> seconds) {
  if (!seconds) return wait_for(work);
  return wait_for(work, std::chrono::steady_clock::now() + milliseconds(*seconds));
}

}  // namespace accl::python
