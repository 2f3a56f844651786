// What one operation costs the trace: begin, started and finished, as the communicator calls them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "trace/trace.h"

namespace {

constexpr int kOperations = 1'000'000;
constexpr int kRepeats = 11;

double ns_per_operation(accl::trace::Trace& trace) {
  const accl::Traffic traffic{1, 4096, 1, 4096, 4096};
  accl::trace::Record record;
  record.algorithm = "direct";
  record.protocol = "inline";
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kOperations; ++i) {
    record.sequence = static_cast<std::uint64_t>(i);
    const accl::trace::Handle handle = trace.begin(record);
    trace.started(handle);
    trace.finished(handle, traffic);
  }
  const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / kOperations;
}

}  // namespace

int main() {
  accl::trace::Trace trace("bench", 0, 1);
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) times.push_back(ns_per_operation(trace));
  std::ranges::sort(times);
  std::printf("trace: %.1f ns an operation (median of %d, least %.1f), counter %s\n",
              times[times.size() / 2], kRepeats, times.front(),
              accl::trace::counter_is_trusted() ? "read directly" : "not trusted: steady clock");
}
