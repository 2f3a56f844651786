#include "communicator/core.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/log.h"
#include "base/text.h"
#include "communicator/backoff.h"
#include "communicator/digest.h"
#include "communicator/fork_guard.h"
#include "reduce/reduce.h"

namespace accl {

using transport::Announcement;
using transport::Failure;
using transport::FailureKind;
using transport::Health;

namespace {

using Clock = Core::Clock;

constexpr std::uint64_t kPassesBetweenWatches = 64;
constexpr std::chrono::milliseconds kStallBeforeComparing{1};
constexpr std::chrono::milliseconds kBetweenLooksForLost{20};
constexpr std::chrono::seconds kLeaveTime{2};  // that a destructor gives to pending work

int cores() {
  static const int count = [] {
    cpu_set_t set;
    return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }();
  return count;
}

// Where ranks outnumber the cores, spinning only keeps the others from working. Elsewhere it is
// short, too: yielding costs little on a core of one's own, and two ranks that share one (another
// program has the other) answer each other after the spins only (8 bytes beside one busy
// program: 4.5 us with 50 spins, 85 us with 2000; alone 0.38 us with either).
Backoff waiter_backoff(int ranks) {
  return {ranks <= cores() ? 50 : 10, std::chrono::milliseconds{2}};
}

Backoff background_backoff() { return {0, std::chrono::microseconds{50}}; }

// Formats in which a sum of partial sums may overflow although the average does not. (bfloat16 has
// float32's range.)
bool has_small_range(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2;
}

// Equal on all ranks that make the same call. Few words, since this runs in every call.
std::uint64_t digest_of(const Call& call, std::uint64_t sequence, std::uint64_t choice_digest) {
  std::uint64_t what = static_cast<std::uint64_t>(call.collective);
  Digest digest;
  digest.add(sequence).add(choice_digest);
  if (call.collective == Collective::kBarrier) return digest.add(what).value();
  what |= static_cast<std::uint64_t>(call.dtype) << 8;
  if (is_reducing(call.collective)) what |= static_cast<std::uint64_t>(call.op) << 16;
  if (is_uneven(call)) what |= std::uint64_t{1} << 24;
  if (is_rooted(call.collective)) what |= static_cast<std::uint64_t>(call.root) << 32;
  return digest.add(what).add(is_uneven(call) ? 0 : call.count).value();
}

std::exception_ptr peer_reported(int peer, const Failure& failure) {
  const std::string text = concat("Rank ", peer, " reported: ", failure.text);
  switch (failure.kind) {
    case FailureKind::kMismatch:
      return std::make_exception_ptr(MismatchError(text));
    case FailureKind::kTimeout:
      return std::make_exception_ptr(TimeoutError(text));
    case FailureKind::kPeer:
    case FailureKind::kAborted:
      break;
  }
  return std::make_exception_ptr(PeerError(text));
}

std::string describe(const Announcement& a) {
  return accl::describe(a.collective, a.count, a.uneven, a.dtype, a.op, a.root);
}

using accl::describe;

Traffic operator+(Traffic a, const Traffic& b) {
  a.messages_sent += b.messages_sent;
  a.bytes_sent += b.bytes_sent;
  a.messages_received += b.messages_received;
  a.bytes_received += b.bytes_received;
  a.bytes_reduced += b.bytes_reduced;
  return a;
}

}  // namespace

struct Core::Correspondence : engine::Message {
  std::shared_ptr<PendingMessages> owner;
};

Core::Core(Handshake handshake, int rank, int size, CommunicatorOptions options,
           std::shared_ptr<const Rules> rules)
    : rank_(rank),
      size_(size),
      nodes_(handshake.nodes),
      name_(std::move(options.name)),
      timeout_ms_(options.timeout.count()),
      process_(fork_generation()),
      transport_(std::move(handshake.transport)),
      planner_(std::move(rules), rank, size, handshake.nodes),
      executor_(*transport_, rank),
      mailbox_(*transport_, rank, size),
      trace_(std::make_unique<trace::Trace>(name_, rank, size)) {}

Core::~Core() {
  if (in_own_process()) {
    stop_background();
    return;
  }
  // A forked child: descriptors and threads belong to the parent.
  (void)transport_.release();
  (void)background_.release();
}

bool Core::in_own_process() const noexcept { return fork_generation() == process_; }

void Core::check_process() const {
  if (in_own_process()) return;
  throw AbortedError(
      concat("Communicator '", name_,
             "' was made by the parent process and cannot be used in a forked child; "
             "make a new one here, or start the process with spawn."));
}

void Core::set_timeout(Milliseconds timeout) {
  if (timeout <= Milliseconds::zero()) {
    throw InvalidArgument(concat("timeout ", timeout.count(), " ms; expected more than 0."));
  }
  timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
}

// From now on: a call's time runs from when it is first found not to move, which is at once where
// others do not come; asking the clock in every call would cost more than a small message.
Clock::time_point Core::deadline_of(const Call& call, Clock::time_point now) const {
  const Milliseconds wanted = call.timeout == Milliseconds::zero() ? timeout() : call.timeout;
  constexpr Milliseconds kLongest =
      std::chrono::hours{24 * 365 * 100};  // keeps the clock from overflowing
  return now + std::min(wanted, kLongest);
}

void Core::throw_if_ended() const {
  if (ended_ == nullptr) return;
  throw AbortedError(concat("Communicator '", name_, "' has ended: ", ended_text_));
}

// ---- posting ----

std::shared_ptr<Work> Core::post(const Call& call) {
  if (is_point_to_point(call.collective)) return post_group({call});
  check_process();
  const CallSizes sizes = validate(call, rank_, size_);
  auto work = std::make_shared<WorkState>(shared_from_this());
  const std::scoped_lock lock(mutex_);
  throw_if_ended();
  const Plan& plan = planner_.plan(call, sizes);
  Pending pending{work, call, plan.algorithm, plan.choice, {}, {}, {}, {}};
  const std::uint64_t sequence = ++collective_sequence_;
  pending.announcement = {sequence,        digest_of(call, sequence, plan.choice_digest),
                          call.count,      call.root,
                          call.collective, call.dtype,
                          call.op,         is_uneven(call)};
  pending.task = {plan.schedule,
                  call.input,
                  call.output,
                  call.dtype,
                  call.op,
                  1,
                  pending.announcement.digest,
                  plan.inline_limit};
  pending.trace =
      trace_->begin({sequence, call.collective, sizes.rules_bytes, call.dtype, call.op, call.root,
                     0, plan.algorithm->name, pending.choice.protocol == "bulk" ? "bulk" : "inline",
                     plan.choice.chunk_bytes});
  work->set_sequence(sequence);
  transport_->announce(pending.announcement);
  ++statistics_.works_posted;
  queue_.push_back(std::move(pending));
  progress();
  if (call.background && !work->completed()) to_background();
  return work;
}

std::shared_ptr<Work> Core::post_group(const std::vector<Call>& calls) {
  check_process();
  for (const Call& call : calls) {
    if (!is_point_to_point(call.collective)) {
      throw InvalidArgument(
          concat("A group holds sends and receives only, not ", name_of(call.collective), "."));
    }
    validate(call, rank_, size_);
  }
  auto work = std::make_shared<WorkState>(shared_from_this());
  const std::scoped_lock lock(mutex_);
  throw_if_ended();
  work->set_sequence(++message_sequence_);
  ++statistics_.works_posted;
  if (calls.empty()) {
    ++statistics_.works_completed;
    work->complete(nullptr);
    return work;
  }
  auto pending = std::make_shared<PendingMessages>();
  pending->work = work;
  pending->calls = calls;
  pending->left = calls.size();
  bool background = false;
  std::size_t bytes = 0;
  for (const Call& call : calls) {
    background |= call.background;
    bytes += call.count * size_of(call.dtype);
  }
  const Call& first = calls.front();
  pending->trace =
      trace_->begin({message_sequence_, first.collective, bytes, first.dtype, first.op, first.peer,
                     first.tag, "direct", "inline", 0, static_cast<std::uint32_t>(calls.size())});
  trace_->started(pending->trace);
  messages_.push_back(pending);
  try {
    for (const Call& call : calls) {
      auto message = std::make_shared<Correspondence>();
      message->is_send = call.collective == Collective::kSend;
      message->peer = call.peer;
      message->tag = call.tag;
      message->data =
          static_cast<std::byte*>(message->is_send ? call.input.data : call.output.data);
      message->bytes = call.count * size_of(call.dtype);
      message->owner = pending;
      mailbox_.post(message);
    }
    progress();
  } catch (const MismatchError& error) {
    const std::string text = mismatch_text(error.what());
    fail(std::make_exception_ptr(MismatchError(text)), FailureKind::kMismatch, text, false);
  }
  if (background && !work->completed()) to_background();
  return work;
}

Choice Core::choice_for(const Call& call) {
  const CallSizes sizes = validate(call, rank_, size_);
  if (is_point_to_point(call.collective))
    return {"direct", "inline", 0, 0};  // not a matter of rules
  const std::scoped_lock lock(mutex_);
  return planner_.plan(call, sizes).choice;
}

// ---- progress ----

bool Core::progress() {
  if (ended_ != nullptr) return false;
  bool moved = false;
  try {
    moved = advance_queue();
    if (mailbox_.busy()) moved |= advance_messages();
    if (!moved && ++idle_passes_ % kPassesBetweenWatches == 0) watch();
  } catch (const MismatchError& error) {
    const std::string text = mismatch_text(error.what());
    fail(std::make_exception_ptr(MismatchError(text)), FailureKind::kMismatch, text, false);
  } catch (const std::exception& error) {
    fail(std::current_exception(), FailureKind::kPeer, error.what(), false);
  }
  if (moved) idle_passes_ = 0;
  if (idle() && background_busy_.load(std::memory_order_relaxed)) background_busy_ = false;
  return moved;
}

bool Core::advance_queue() {
  bool moved = false;
  while (!queue_.empty()) {
    if (!front_started_) start_next();
    moved |= executor_.advance();
    if (executor_.busy()) return moved;
    finish_front();
    moved = true;
  }
  return moved;
}

void Core::start_next() {
  Pending& front = queue_.front();
  const bool many_hops = front.algorithm->multi_hop;
  if (front.call.op == ReduceOp::kPremulSum && is_reducing(front.call.collective)) {
    prescale(front, front.call.factor);
  } else if (front.call.op == ReduceOp::kAvg && is_reducing(front.call.collective)) {
    front.task.op = ReduceOp::kSum;
    front.task.divisor = size_;
    // Where such partial sums travel, they are kept small by a power of two, which costs no digit.
    if (many_hops && has_small_range(front.call.dtype)) {
      const auto shrink = static_cast<double>(std::bit_ceil(static_cast<unsigned>(size_)));
      prescale(front, 1.0 / shrink);
      front.task.divisor = size_ / shrink;
    }
  }
  trace_->started(front.trace);
  front_started_ = true;
  executor_.begin(std::move(front.task));
}

// Multiplies this rank's input by its factor, into the output where that has room for it.
void Core::prescale(Pending& pending, double factor) {
  engine::Task& task = pending.task;
  task.op = ReduceOp::kSum;
  const CallSizes sizes = validate(pending.call, rank_, size_);
  const std::size_t element = size_of(pending.call.dtype);
  if (pending.call.collective == Collective::kAllReduce) {
    reduce::scale(task.input.data, task.output.data, sizes.block_bytes / element,
                  pending.call.dtype, factor);
    task.input = task.output;
    return;
  }
  const std::size_t bytes = is_uneven(pending.call) ? [&] {
    std::size_t sum = 0;
    for (const std::size_t block : sizes.blocks) sum += block;
    return sum;
  }()
                                                    : static_cast<std::size_t>(sizes.rules_bytes);
  prescaled_.resize(bytes);
  if (task.input.blocks.empty()) {
    reduce::scale(task.input.data, prescaled_.data(), bytes / element, pending.call.dtype, factor);
  } else {
    std::byte* to = prescaled_.data();
    for (const auto& [data, length] : task.input.blocks) {
      reduce::scale(data, to, length / element, pending.call.dtype, factor);
      to += length;
    }
  }
  task.input = {prescaled_.data(), {}};
}

void Core::finish_front() {
  Pending& front = queue_.front();
  const Traffic& traffic = executor_.traffic();
  front.work->set_report(
      {front.choice.algorithm, front.choice.protocol, front.choice.chunk_bytes, traffic});
  trace_->finished(front.trace, traffic);
  collective_traffic_ = collective_traffic_ + traffic;
  ++statistics_.works_completed;
  if (!prescaled_.empty()) prescaled_ = {};
  const std::shared_ptr<WorkState> work = std::move(front.work);
  queue_.pop_front();
  front_started_ = false;
  work->complete(nullptr);
}

bool Core::advance_messages() {
  const bool moved = mailbox_.advance(completed_messages_);
  for (const engine::MessagePointer& message : completed_messages_) {
    const auto owner = static_cast<const Correspondence&>(*message).owner;
    if (!message->is_send) owner->work->set_source(message->source);
    if (--owner->left != 0) continue;
    WorkReport report{"direct", "inline", 0, {}};
    for (const Call& call : owner->calls) {
      const std::size_t bytes = call.count * size_of(call.dtype);
      const bool sends = call.collective == Collective::kSend;
      ++(sends ? report.traffic.messages_sent : report.traffic.messages_received);
      (sends ? report.traffic.bytes_sent : report.traffic.bytes_received) += bytes;
    }
    trace_->finished(owner->trace, report.traffic);
    owner->work->set_report(std::move(report));
    std::erase(messages_, owner);
    ++statistics_.works_completed;
    owner->work->complete(nullptr);
  }
  completed_messages_.clear();
  return moved;
}

// ---- what goes wrong ----

// Called now and then while nothing moves.
void Core::watch() {
  if (idle()) return;
  const Clock::time_point now = Clock::now();
  if (idle_passes_ == kPassesBetweenWatches) stalled_since_ = now;
  check_failures();
  if (ended_ != nullptr) return;
  if (now - stalled_since_ >= kStallBeforeComparing) check_announcements();
  if (now >= next_look_for_lost_) {
    next_look_for_lost_ = now + kBetweenLooksForLost;
    check_lost_peers();
  }
  if (ended_ == nullptr) check_deadlines(now);
}

void Core::check_failures() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || transport_->health(peer) != Health::kFailed) continue;
    const Failure failure = transport_->failure(peer);
    return fail(peer_reported(peer, failure), failure.kind, failure.text, false);
  }
}

// Ranks that make different calls may wait for each other without a message passing.
void Core::check_announcements() {
  if (queue_.empty()) return;
  const Announcement& own = queue_.front().announcement;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto theirs = transport_->announced(peer, own.sequence);
    if (theirs && theirs->digest != own.digest) throw MismatchError("");
  }
}

std::vector<int> Core::needed_peers() {
  std::vector<int> peers = queue_.empty() ? std::vector<int>{} : executor_.waiting_for();
  for (const int peer : mailbox_.waiting_for()) peers.push_back(peer);
  if (mailbox_.waits_for_any() && size_ > 1) {
    // Any one of them would do: all must be lost before the receive is.
    const bool some_left = [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_ && transport_->health(peer) == Health::kWell && transport_->alive(peer))
          return true;
      }
      return false;
    }();
    if (!some_left) peers.push_back(rank_ == 0 ? 1 : 0);
  }
  return peers;
}

void Core::check_lost_peers() {
  const auto is_lost = [&](int peer) {
    return transport_->health(peer) == Health::kLeft || !transport_->alive(peer);
  };
  std::vector<int> lost = needed_peers();
  std::erase_if(lost, [&](int peer) { return !is_lost(peer); });
  if (lost.empty()) return;
  // What it sent before it went may still lie here.
  bool moved = advance_queue();
  if (mailbox_.busy()) moved |= advance_messages();
  if (moved) return;
  const int peer = lost.front();
  const std::string what = queue_.empty() ? describe(messages_.front()->calls.front())
                                          : concat(describe(queue_.front().call), " (call #",
                                                   queue_.front().announcement.sequence, ")");
  const char* how =
      transport_->health(peer) == Health::kLeft ? " has left the communicator" : " died";
  const std::string text = concat("Rank ", peer, how, " while rank ", rank_, " waited for it in ",
                                  what, " of communicator '", name_, "'.");
  fail(std::make_exception_ptr(PeerError(text)), FailureKind::kPeer, text, true);
}

void Core::check_deadlines(Clock::time_point now) {
  for (Pending& pending : queue_) {
    if (pending.deadline == kNoDeadline) pending.deadline = deadline_of(pending.call, now);
    if (now < pending.deadline) continue;
    const std::string text = timeout_text(pending);
    return fail(std::make_exception_ptr(TimeoutError(text)), FailureKind::kTimeout, text, true);
  }
  for (const auto& pending : messages_) {
    if (pending->deadline == kNoDeadline) {
      pending->deadline = Clock::time_point::max();
      for (const Call& call : pending->calls) {
        pending->deadline = std::min(pending->deadline, deadline_of(call, now));
      }
    }
    if (now < pending->deadline) continue;
    const Call& first = pending->calls.front();
    const Milliseconds after = first.timeout == Milliseconds::zero() ? timeout() : first.timeout;
    const std::string text =
        concat(describe(first), pending->calls.size() > 1 ? " (and others of its group)" : "",
               " of communicator '", name_, "' on rank ", rank_, " Timed out after ", after.count(),
               " ms.");
    return fail(std::make_exception_ptr(TimeoutError(text)), FailureKind::kTimeout, text, true);
  }
}

std::string Core::last_call_of(int peer) const {
  const std::uint64_t last = transport_->last_announced(peer);
  if (last == 0) return "it has made no call yet";
  const auto a = transport_->announced(peer, last);
  if (!a) return concat("its last call was #", last);
  return concat("its last call was #", last, ", ", describe(*a));
}

std::string Core::timeout_text(const Pending& pending) const {
  const Milliseconds after =
      pending.call.timeout == Milliseconds::zero() ? timeout() : pending.call.timeout;
  const std::uint64_t sequence = pending.announcement.sequence;
  std::string text = concat(describe(pending.call), ", call #", sequence, " of communicator '",
                            name_, "' on rank ", rank_, " Timed out after ", after.count(), " ms");
  std::string arrived;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (transport_->last_announced(peer) >= sequence) {
      arrived += concat(arrived.empty() ? "" : ", ", peer);
    } else {
      text += concat("; rank ", peer, " has not made the call (", last_call_of(peer), ")");
    }
  }
  if (!arrived.empty()) text += concat("; ranks that have made it: ", arrived);
  return text + ".";
}

// What the ranks disagree on: the earliest call, among those still announced, that differs. It may
// lie before the pending one, since some calls (a broadcast's root) are complete without hearing
// from anybody.
std::string Core::mismatch_text(const std::string& what) const {
  const std::uint64_t newest = collective_sequence_;
  const std::uint64_t oldest =
      newest > transport::kAnnouncements ? newest - transport::kAnnouncements + 1 : 1;
  for (std::uint64_t sequence = oldest; sequence <= newest; ++sequence) {
    const std::string differing = differing_calls(sequence);
    if (differing.empty()) continue;
    return concat("The ranks of communicator '", name_, "' disagree on call #", sequence, ": rank ",
                  rank_, " calls ", describe(*transport_->announced(rank_, sequence)), differing,
                  ".");
  }
  const std::string where = queue_.empty()
                                ? ""
                                : concat(", in ", describe(queue_.front().call), " (call #",
                                         queue_.front().announcement.sequence, ")");
  return concat("In communicator '", name_, "', ",
                what.empty() ? "ranks made different calls" : what, where, ".");
}

// "; rank 1 calls ..." for each peer whose call of that number differs from this rank's.
std::string Core::differing_calls(std::uint64_t sequence) const {
  const auto own = transport_->announced(rank_, sequence);
  if (!own) return "";
  std::string text;
  for (int peer = 0; peer < size_; ++peer) {
    const auto theirs = peer == rank_ ? std::nullopt : transport_->announced(peer, sequence);
    if (!theirs || theirs->digest == own->digest) continue;
    text += concat("; rank ", peer, " calls ", describe(*theirs));
    if (describe(*theirs) == describe(*own)) {
      text += " with another algorithm, protocol or chunk size, which must be the same everywhere";
    }
  }
  return text;
}

// Ends the communicator: all pending work fails, peers are told.
void Core::fail(std::exception_ptr error, FailureKind kind, const std::string& text, bool dump) {
  if (ended_ != nullptr) return;
  ended_ = error;
  ended_text_ = text;
  transport_->report_failure({kind, text});
  log(LogLevel::kWarn, concat("Communicator '", name_, "', rank ", rank_, ": ", text));
  for (const Pending& pending : queue_) trace_->failed(pending.trace, text);
  for (const auto& pending : messages_) trace_->failed(pending->trace, text);
  if (dump) trace_->dump(environment().trace_dir, text);
  statistics_.works_failed += queue_.size() + messages_.size();
  const auto queue = std::exchange(queue_, {});
  const auto messages = std::exchange(messages_, {});
  mailbox_.clear();
  front_started_ = false;
  for (const Pending& pending : queue) pending.work->complete(error);
  for (const auto& pending : messages) pending->work->complete(error);
}

void Core::abort(const std::string& reason) {
  if (!in_own_process()) return;
  const std::scoped_lock lock(mutex_);
  const std::string text =
      concat("Communicator '", name_, "' was aborted on rank ", rank_, ": ", reason);
  fail(std::make_exception_ptr(AbortedError(text)), FailureKind::kAborted, text, false);
}

std::exception_ptr Core::error() {
  const std::scoped_lock lock(mutex_);
  if (ended_ == nullptr && in_own_process()) check_failures();
  return ended_;
}

// ---- waiting ----

bool Core::drive_until_complete(const WorkState& work, Milliseconds timeout) {
  check_process();
  const bool bounded = timeout != Milliseconds::max();
  const Clock::time_point deadline = bounded ? Clock::now() + timeout : Clock::time_point::max();
  ++waiters_;
  Backoff backoff = waiter_backoff(size_);
  std::uint64_t looks = 0;
  while (!work.completed()) {
    bool moved = false;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) moved = progress();
    if (moved) {
      backoff.reset();
      continue;
    }
    if (bounded && ++looks % 16 == 0 && Clock::now() >= deadline) break;
    backoff.pause();
  }
  if (--waiters_ == 0 && background_busy_) {
    const std::scoped_lock lock(background_mutex_);
    background_ready_.notify_one();
  }
  return work.completed();
}

void Core::to_background() {
  const std::scoped_lock lock(background_mutex_);
  if (background_stop_) return;
  background_busy_ = true;
  if (background_ == nullptr)
    background_ = std::make_unique<std::thread>([this] { work_in_background(); });
  background_ready_.notify_one();
}

void Core::work_in_background() {
  const auto wanted = [this] { return background_busy_ && waiters_ == 0; };
  std::unique_lock lock(background_mutex_);
  for (;;) {
    background_ready_.wait(lock, [&] { return background_stop_ || wanted(); });
    if (background_stop_) return;
    lock.unlock();
    Backoff backoff = background_backoff();
    while (wanted()) {
      bool moved = false;
      {
        const std::scoped_lock progress_lock(mutex_);
        moved = progress();
        if (ended_ != nullptr) background_busy_ = false;
      }
      if (moved)
        backoff.reset();
      else
        backoff.pause();
    }
    lock.lock();
  }
}

void Core::stop_background() noexcept {
  std::unique_ptr<std::thread> thread;
  {
    const std::scoped_lock lock(background_mutex_);
    background_stop_ = true;
    background_busy_ = false;
    thread = std::move(background_);
    background_ready_.notify_all();
  }
  if (thread != nullptr && thread->joinable()) thread->join();
}

// ---- leaving ----

void Core::shutdown() {
  if (!in_own_process()) return;
  const Clock::time_point deadline = Clock::now() + timeout();
  Backoff backoff = waiter_backoff(size_);
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      if (ended_ != nullptr) break;
      if (idle() || Clock::now() >= deadline) {
        const std::size_t pending = queue_.size() + messages_.size();
        if (pending != 0) {
          const std::string text = concat("Communicator '", name_, "' was shut down on rank ",
                                          rank_, " with ", pending, " calls pending.");
          fail(std::make_exception_ptr(AbortedError(text)), FailureKind::kAborted, text, true);
        } else {
          transport_->report_left();
          ended_text_ = "it was shut down.";
          ended_ = std::make_exception_ptr(
              AbortedError(concat("Communicator '", name_, "' was shut down.")));
        }
        break;
      }
      if (progress()) backoff.reset();
    }
    backoff.pause();
  }
  stop_background();
}

void Core::leave_soon() noexcept {
  if (!in_own_process()) return;
  try {
    timeout_ms_ = std::min<std::int64_t>(timeout_ms_, Milliseconds(kLeaveTime).count());
    shutdown();
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        concat("Communicator '", name_, "' could not be shut down: ", error.what()));
  }
}

Statistics Core::statistics() {
  const std::scoped_lock lock(mutex_);
  Statistics statistics = statistics_;
  statistics.traffic = collective_traffic_ + mailbox_.traffic();
  statistics.staging_bytes = transport_->staging_bytes();
  return statistics;
}

std::string Core::trace_json() const { return trace_->to_json("request"); }

}  // namespace accl
