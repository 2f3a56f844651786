// DeviceCore: what a device communicator and its works share: the order of calls, what is on its
// way on the GPU, and how it ends.
//
// Threads and locks. order_mutex_ is held while one call is put on its stream: that may take long,
// since NCCL connects at the first calls. state_mutex_ is held for moments only, so that the
// watchdog and abort() come through while a call hangs in NCCL. Order: order_mutex_, then
// state_mutex_. A fault is concluded on a thread of its own, which asks the other ranks first.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accl/device.h"
#include "communicator/device_join.h"
#include "communicator/device_log.h"
#include "communicator/validate.h"
#include "communicator/watchdog.h"
#include "driver/driver.h"
#include "driver/event_pool.h"
#include "trace/trace.h"

namespace accl {

class DeviceWorkState;

class DeviceCore : public Watched, public std::enable_shared_from_this<DeviceCore> {
 public:
  using Clock = std::chrono::steady_clock;

  DeviceCore(DeviceParts parts, const DeviceOptions& options);
  ~DeviceCore() override;

  std::shared_ptr<DeviceWork> enqueue(const Call& call, driver::Stream stream);
  std::shared_ptr<DeviceWork> enqueue_group(const std::vector<Call>& calls, driver::Stream stream);
  void follow(driver::Stream stream, driver::Stream after);
  std::pair<Engine, Choice> choice_for(const Call& call) const;
  std::shared_ptr<DeviceCore> split(int color, int key, const DeviceOptions& options);

  void abort(const std::string& reason);
  void shutdown();
  void leave_soon() noexcept;  // of the destructor: gives pending work a short time, then goes
  std::exception_ptr error();
  bool ready();
  void set_timeout(Milliseconds timeout);
  DeviceStatistics statistics();
  std::string trace_json() const;

  void watch() noexcept override;

  // Of the works.
  bool completed(DeviceWorkState& work);
  bool wait(DeviceWorkState& work, Milliseconds timeout);
  void order(DeviceWorkState& work, driver::Stream stream);
  void retire(driver::Event event) noexcept { events_.give_back(event); }

  int rank() const noexcept { return parts_.rank; }
  int size() const noexcept { return parts_.size; }
  int nodes() const noexcept { return parts_.nodes; }
  int device() const noexcept { return device_; }
  const std::string& name() const noexcept { return name_; }
  Milliseconds timeout() const noexcept { return Milliseconds{timeout_ms_.load()}; }
  const std::shared_ptr<const Rules>& rules() const noexcept { return parts_.rules; }
  const std::string& why_no_kernels() const noexcept { return parts_.why_no_kernels; }

 private:
  // Which engine a call goes to. The rule is of rules() or of the defaults; null: NCCL's own
  // choice.
  struct Selection {
    Engine engine = Engine::kNccl;
    const Rule* rule = nullptr;
    bool two_shot = false;
  };
  struct Flight {
    std::shared_ptr<DeviceWorkState> work;
    CallNote note;
    trace::Handle trace = 0;
    Clock::time_point deadline;
    driver::Stream stream = nullptr;
    bool enqueued = false;  // else a thread is still putting it there
  };
  enum class Fault { kTimeout, kNccl, kPeer };

  Selection select(const Call& call, const CallSizes& sizes) const;
  Selection select_forced(const Call& call, const cuda::KernelCall& kernel) const;
  cuda::KernelCall kernel_call(const Call& call) const;

  void check_process() const;
  void throw_if_ended();  // needs state_mutex_
  std::shared_ptr<DeviceWork> submit(const std::vector<Call>* group, const Call& first,
                                     const CallSizes* sizes, driver::Stream stream);
  std::shared_ptr<DeviceWorkState> begin(const Call& first, std::size_t calls,
                                         const CallSizes* sizes, const Selection& selection,
                                         driver::Stream stream);
  void launch(const Call& call, const Selection& selection, driver::Stream stream);
  void order_kernels(driver::Stream stream, const std::shared_ptr<DeviceWorkState>& work);
  void check_steering();
  void commit(const std::shared_ptr<DeviceWorkState>& work, driver::Event event, bool captured);
  void withdraw(const std::shared_ptr<DeviceWorkState>& work, const std::string& why);

  // All of these need state_mutex_ and the context.
  bool passed(const Flight& flight);
  void reap_half();
  void reap();
  void finish(Flight& flight);

  void look_for_faults();
  void look_at_bulletin(Clock::time_point now);
  void conclude(Fault fault, const std::string& what, const CallNote& note);
  std::string ask_others(Fault fault, const CallNote& note);
  void end(std::exception_ptr error, const std::string& text, bool tell);
  void release_gpu() noexcept;
  void exit_unless_noticed();

  DeviceParts parts_;
  const std::string name_;
  const int device_;
  const OnFault on_fault_;
  const unsigned process_;  // fork generation in which this was made
  std::atomic<std::int64_t> timeout_ms_;
  driver::Pointer scratch_ = 0;  // for barriers
  driver::EventPool events_;
  std::unique_ptr<trace::Trace> trace_;

  std::mutex order_mutex_;
  int splits_ = 0;
  bool steering_checked_;  // create() does it where it waits for NCCL
  std::shared_ptr<DeviceWorkState> last_kernel_;
  driver::Stream last_kernel_stream_ = nullptr;
  std::uint64_t last_kernel_capture_ = 0;  // 0: not captured

  std::mutex state_mutex_;
  std::deque<Flight> flights_;
  DeviceLog log_;
  std::uint64_t messages_ = 0;
  std::uint64_t since_reaped_ = 0;
  DeviceStatistics statistics_;
  std::exception_ptr ended_;
  std::string ended_text_;
  bool concluding_ = false;
  std::atomic<bool> noticed_{false};  // somebody has been told how it ended
  std::atomic<bool> gpu_released_{false};
  std::atomic<bool> closed_{false};

  Clock::time_point next_look_{};  // at the bulletin; of the watchdog's thread
  std::string answered_;
};

// The work of one enqueued call or group.
class DeviceWorkState final : public DeviceWork {
 public:
  explicit DeviceWorkState(std::shared_ptr<DeviceCore> core) : core_(std::move(core)) {}
  ~DeviceWorkState() override;

  bool completed() override {
    return done_.load(std::memory_order_acquire) || core_->completed(*this);
  }
  std::exception_ptr error() override {
    return done_.load(std::memory_order_acquire) ? error_ : nullptr;
  }
  bool wait(Milliseconds timeout) override { return core_->wait(*this, timeout); }
  void order(DeviceStream stream) override {
    core_->order(*this, static_cast<driver::Stream>(stream));
  }
  std::uint64_t sequence() const noexcept override { return sequence_; }
  WorkReport report() const override;
  Engine engine() const noexcept override { return engine_; }

 private:
  friend class DeviceCore;
  const std::shared_ptr<DeviceCore> core_;
  std::uint64_t sequence_ = 0;
  Engine engine_ = Engine::kNccl;
  const Rule* rule_ = nullptr;     // lives as long as the core's rules
  driver::Event event_ = nullptr;  // null before it is enqueued and after it is done
  bool captured_ = false;
  std::exception_ptr error_;  // written before done_
  std::atomic<bool> done_{false};
};

}  // namespace accl
