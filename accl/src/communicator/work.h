// WorkState: the Work of one posted call (or group), completed by the core under its lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "accl/communicator.h"

namespace accl {

class Core;

class WorkState final : public Work {
 public:
  explicit WorkState(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  bool completed() const noexcept override { return completed_.load(std::memory_order_acquire); }
  bool failed() const noexcept override { return completed() && error_ != nullptr; }
  std::exception_ptr error() const override { return completed() ? error_ : nullptr; }
  bool wait(Milliseconds timeout) override;
  void on_complete(std::function<void()> done) override;
  std::uint64_t sequence() const noexcept override { return sequence_; }
  int source_rank() const noexcept override { return completed() ? source_ : -1; }
  WorkReport report() const override { return completed() ? report_ : WorkReport{}; }

  // For the core; fields are written before complete() and read by others only after it.
  void set_sequence(std::uint64_t sequence) noexcept { sequence_ = sequence; }
  void set_source(int source) noexcept { source_ = source; }
  void set_report(WorkReport report) { report_ = std::move(report); }
  void complete(std::exception_ptr error);

 private:
  std::shared_ptr<Core> core_;
  std::atomic<bool> completed_{false};
  std::exception_ptr error_;
  std::uint64_t sequence_ = 0;
  int source_ = -1;
  WorkReport report_;
  std::mutex callbacks_mutex_;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace accl
