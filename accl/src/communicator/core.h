// Core: what a communicator and its works share: the queue of posted calls, and the progress that
// moves it.
//
// Threads and locks. `mutex_` is the progress lock: whoever holds it may post, make one pass of
// progress, or end the communicator; it is held for one pass at a time. Threads that wait take it
// in turn and drive. A background thread drives work that nobody waits for; it steps aside while
// anybody waits. Order of locks: mutex_, then a work's callback mutex; background_mutex_ is taken
// alone.
//
// Collectives run one after the other in the order of posting, which must be the same on all ranks.
// Point-to-point messages run beside them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "accl/communicator.h"
#include "communicator/handshake.h"
#include "communicator/planner.h"
#include "communicator/work.h"
#include "engine/cpu/executor.h"
#include "engine/cpu/mailbox.h"
#include "trace/trace.h"

namespace accl {

class Core : public std::enable_shared_from_this<Core> {
 public:
  using Clock = std::chrono::steady_clock;

  Core(Handshake handshake, int rank, int size, CommunicatorOptions options,
       std::shared_ptr<const Rules> rules);
  ~Core();

  std::shared_ptr<Work> post(const Call& call);
  std::shared_ptr<Work> post_group(const std::vector<Call>& calls);
  Choice choice_for(const Call& call);

  // Drives until the work is complete; false where `timeout` passed first.
  bool drive_until_complete(const WorkState& work, Milliseconds timeout);

  void abort(const std::string& reason);
  void shutdown();
  void leave_soon() noexcept;  // of the destructor: gives pending work a short time, then goes
  std::exception_ptr error();
  Statistics statistics();
  std::string trace_json() const;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int nodes() const noexcept { return nodes_; }
  const std::string& name() const noexcept { return name_; }
  Milliseconds timeout() const noexcept {
    return Milliseconds{timeout_ms_.load(std::memory_order_relaxed)};
  }
  void set_timeout(Milliseconds timeout);
  std::shared_ptr<const Rules> rules() const { return planner_.rules(); }
  bool in_own_process() const noexcept;

 private:
  static constexpr Clock::time_point kNoDeadline{};

  struct Pending {
    std::shared_ptr<WorkState> work;
    Call call;
    const Algorithm* algorithm;
    Choice choice;
    engine::Task task;
    transport::Announcement announcement;
    Clock::time_point deadline = kNoDeadline;  // set when it first does not move
    trace::Handle trace;
  };
  struct Correspondence;    // one send or recv of a work
  struct PendingMessages {  // a p2p work
    std::shared_ptr<WorkState> work;
    std::vector<Call> calls;
    std::size_t left;
    Clock::time_point deadline = kNoDeadline;  // set when it first does not move
    trace::Handle trace;
  };

  // All of these need mutex_.
  bool progress();
  bool advance_queue();
  bool advance_messages();
  void start_next();
  void prescale(Pending& pending, double factor);
  void finish_front();
  void watch();
  void check_deadlines(Clock::time_point now);
  void check_failures();
  void check_announcements();
  void check_lost_peers();
  std::vector<int> needed_peers();
  void fail(std::exception_ptr error, transport::FailureKind kind, const std::string& text,
            bool dump);
  void throw_if_ended() const;
  std::string timeout_text(const Pending& pending) const;
  std::string mismatch_text(const std::string& what) const;
  std::string differing_calls(std::uint64_t sequence) const;
  std::string last_call_of(int peer) const;
  bool idle() const noexcept { return queue_.empty() && !mailbox_.busy(); }

  Clock::time_point deadline_of(const Call& call, Clock::time_point now) const;
  void check_process() const;
  void to_background();
  void work_in_background();
  void stop_background() noexcept;

  const int rank_;
  const int size_;
  const int nodes_;
  const std::string name_;
  std::atomic<std::int64_t> timeout_ms_;
  const unsigned process_;  // fork generation in which this was made

  std::mutex mutex_;
  std::unique_ptr<transport::ShmTransport> transport_;
  Planner planner_;
  engine::Executor executor_;
  engine::Mailbox mailbox_;
  std::unique_ptr<trace::Trace> trace_;
  std::deque<Pending> queue_;
  std::deque<std::shared_ptr<PendingMessages>> messages_;
  std::vector<engine::MessagePointer> completed_messages_;
  bool front_started_ = false;
  std::vector<std::byte> prescaled_;
  std::exception_ptr ended_;  // why the communicator has ended
  std::string ended_text_;
  std::uint64_t collective_sequence_ = 0;
  std::uint64_t message_sequence_ = 0;
  std::uint64_t idle_passes_ = 0;
  Clock::time_point stalled_since_;
  Clock::time_point next_look_for_lost_;
  Statistics statistics_;
  Traffic collective_traffic_;

  std::atomic<int> waiters_{0};
  std::atomic<bool> background_busy_{
      false};  // there is work that the background thread shall drive
  std::mutex background_mutex_;
  std::condition_variable background_ready_;
  bool background_stop_ = false;
  std::unique_ptr<std::thread> background_;
};

}  // namespace accl
