#include "communicator/device_core.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/log.h"
#include "base/text.h"
#include "communicator/fork_guard.h"
#include "engine/nccl/steering.h"

namespace accl {

namespace {

using Clock = DeviceCore::Clock;

constexpr std::size_t kScratchBytes = 64;
constexpr std::size_t kReapEvery = 64;    // calls: one question to the GPU for as many of them
constexpr Milliseconds kLeaveTime{2000};  // that a destructor gives to pending work
constexpr Milliseconds kExitPatience{10'000};
constexpr Milliseconds kAnswerTime{2000};  // beyond what the others need to see the question
constexpr Milliseconds kRound{200};

const driver::Table& gpu() { return driver::table(); }

// Between looks at the GPU a waiting host thread first spins, then sleeps.
class HostWait {
 public:
  void pause() {
    if (Clock::now() - start_ < std::chrono::microseconds{50}) return;
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds{500});
  }

 private:
  const Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{10};
};

Clock::time_point after(Clock::time_point start, Milliseconds timeout) {
  const bool forever =
      timeout >= std::chrono::duration_cast<Milliseconds>(Clock::time_point::max() - start);
  return forever ? Clock::time_point::max() : start + timeout;
}

// Where each rank's block of a buffer lies; of a buffer without blocks the first entry is it.
template <class Pointers>
void set_blocks(const Buffer& buffer, std::size_t block_bytes, int ranks, Pointers& pointers) {
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
    pointers[r] = buffer.blocks.empty() ? static_cast<std::byte*>(buffer.data) + r * block_bytes
                                        : static_cast<std::byte*>(buffer.blocks[r].first);
  }
}

template <class Kind>
std::exception_ptr made(const std::string& text) {
  return std::make_exception_ptr(Kind(text));
}

std::uint64_t capture_of(driver::Stream stream) {
  int status = 0;
  std::uint64_t id = 0;
  driver::check(gpu().stream_capture_info(stream, &status, &id, nullptr, nullptr, nullptr),
                "cuStreamGetCaptureInfo");
  return status == driver::kCaptureActive ? id : 0;
}

}  // namespace

DeviceWorkState::~DeviceWorkState() {
  if (event_ != nullptr) core_->retire(event_);
}

WorkReport DeviceWorkState::report() const {
  WorkReport report;
  if (rule_ == nullptr) return report;
  report.algorithm = rule_->choice.algorithm;
  report.protocol = rule_->choice.protocol;
  report.chunk_bytes = rule_->choice.chunk_bytes;
  return report;
}

DeviceCore::DeviceCore(DeviceParts parts, const DeviceOptions& options)
    : parts_(std::move(parts)),
      name_(options.name),
      device_(options.device),
      on_fault_(options.on_fault),
      process_(fork_generation()),
      timeout_ms_(options.timeout.count()),
      trace_(std::make_unique<trace::Trace>(options.name, parts_.rank, parts_.size)),
      steering_checked_(options.blocking) {
  const driver::Current current(parts_.context);
  driver::check(gpu().memory_allocate(&scratch_, kScratchBytes), "cuMemAlloc");
  driver::check(gpu().memory_set(scratch_, 0, kScratchBytes), "cuMemsetD8");
  if (parts_.kernels) parts_.kernels->set_deadline(options.timeout);
}

DeviceCore::~DeviceCore() {
  try {
    if (fork_generation() != process_) {
      // A child has none of the parent's threads and GPU state: nothing of it may be touched.
      (void)parts_.engine.release();
      (void)parts_.kernels.release();
      return;
    }
    const driver::Current current(parts_.context);
    last_kernel_.reset();
    parts_.kernels.reset();
    gpu().memory_free(scratch_);
  } catch (...) {  // the driver is gone, and the memory with it
  }
}

void DeviceCore::check_process() const {
  if (fork_generation() == process_) return;
  throw AbortedError(
      concat("Communicator '", name_,
             "' was made by the parent process and cannot be used in a forked child; "
             "make a new one here, or start the process with spawn."));
}

void DeviceCore::throw_if_ended() {
  if (ended_ == nullptr) return;
  noticed_ = true;
  std::rethrow_exception(ended_);
}

cuda::KernelCall DeviceCore::kernel_call(const Call& call) const {
  cuda::KernelCall kernel;
  kernel.collective = call.collective;
  if (is_uneven(call) || parts_.size > cuda::kMostRanks) return kernel;
  const std::size_t block = call.count * size_of(call.dtype);
  set_blocks(call.input, block, parts_.size, kernel.inputs);
  set_blocks(call.output, block, parts_.size, kernel.outputs);
  kernel.count = call.count;
  kernel.dtype = call.dtype;
  kernel.op = call.op;
  kernel.factor = call.factor;
  kernel.root = call.root;
  return kernel;
}

DeviceCore::Selection DeviceCore::select(const Call& call, const CallSizes& sizes) const {
  cuda::KernelCall kernel = kernel_call(call);
  if (!call.forced.algorithm.empty()) return select_forced(call, kernel);
  RulesQuery query{Engine::kNccl,
                   call.collective,
                   sizes.rules_bytes,
                   is_uneven(call),
                   parts_.size,
                   parts_.nodes,
                   1};
  const Rule* nccl = parts_.rules->match(query);
  if (!parts_.kernels || is_uneven(call)) return {Engine::kNccl, nccl, false};
  query.engine = Engine::kCuda;
  const Rule* ours = parts_.rules->match(query);
  if (ours == nullptr && nccl == nullptr) ours = Rules::defaults().match(query);
  const bool later = ours != nullptr && nccl != nullptr && nccl->line < ours->line;
  if (ours == nullptr || later) return {Engine::kNccl, nccl, false};
  kernel.two_shot = ours->choice.algorithm == "two_shot";
  if (!parts_.kernels->takes(kernel)) return {Engine::kNccl, nccl, false};
  return {Engine::kCuda, ours, kernel.two_shot};
}

DeviceCore::Selection DeviceCore::select_forced(const Call& call,
                                                const cuda::KernelCall& kernel) const {
  const std::string& word = call.forced.algorithm;
  const auto words = Rules::algorithm_words(Engine::kCuda, call.collective);
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    throw InvalidArgument(concat("Algorithm '", word, "' cannot be forced for ",
                                 name_of(call.collective),
                                 " on GPUs: NCCL takes its own from the rules, through the tuner "
                                 "plugin; direct and two_shot are our kernels'."));
  }
  if (!parts_.kernels) {
    throw InvalidArgument(concat("Algorithm '", word, "' of the GPU kernels is not available: ",
                                 parts_.why_no_kernels, "."));
  }
  cuda::KernelCall forced = kernel;
  forced.two_shot = word == "two_shot";
  if (is_uneven(call) || !parts_.kernels->takes(forced)) {
    throw InvalidArgument(concat("Algorithm '", word, "' has no kernel for ", describe(call), "."));
  }
  return {Engine::kCuda, nullptr, forced.two_shot};
}

std::pair<Engine, Choice> DeviceCore::choice_for(const Call& call) const {
  const Selection selection = select(call, validate(call, parts_.rank, parts_.size));
  Choice choice = selection.rule != nullptr ? selection.rule->choice : call.forced;
  return {selection.engine, choice};
}

std::shared_ptr<DeviceWork> DeviceCore::enqueue(const Call& call, driver::Stream stream) {
  check_process();
  const CallSizes sizes = validate(call, parts_.rank, parts_.size);
  if (call.collective == Collective::kRecv && call.peer == kAnySource) {
    throw InvalidArgument("recv: NCCL cannot receive from any source; name the peer's rank.");
  }
  return submit(nullptr, call, &sizes, stream);
}

std::shared_ptr<DeviceWork> DeviceCore::enqueue_group(const std::vector<Call>& calls,
                                                      driver::Stream stream) {
  if (calls.empty()) throw InvalidArgument("A group of calls is empty; expected at least one.");
  if (calls.size() == 1) return enqueue(calls.front(), stream);
  check_process();
  for (const Call& call : calls) {
    validate(call, parts_.rank, parts_.size);
    if (call.collective == Collective::kRecv && call.peer == kAnySource) {
      throw InvalidArgument("recv: NCCL cannot receive from any source; name the peer's rank.");
    }
  }
  return submit(&calls, calls.front(), nullptr, stream);
}

std::shared_ptr<DeviceWork> DeviceCore::submit(const std::vector<Call>* group, const Call& first,
                                               const CallSizes* sizes, driver::Stream stream) {
  const std::scoped_lock order(order_mutex_);
  const driver::Current current(parts_.context);
  const Selection selection = sizes != nullptr ? select(first, *sizes) : Selection{};
  int status = driver::kCaptureNone;
  driver::check(gpu().stream_capture_status(stream, &status), "cuStreamIsCapturing");
  const auto work = begin(first, group == nullptr ? 1 : group->size(), sizes, selection, stream);
  try {
    if (selection.engine == Engine::kCuda) {
      order_kernels(stream, work);
      launch(first, selection, stream);
    } else if (group != nullptr) {
      parts_.engine->enqueue_group(*group, stream, reinterpret_cast<void*>(scratch_));
    } else {
      parts_.engine->enqueue(first, stream, reinterpret_cast<void*>(scratch_));
    }
    if (!steering_checked_ && selection.engine == Engine::kNccl) check_steering();
    const driver::Event event = events_.take();
    const driver::Result recorded = gpu().event_record(event, stream);
    if (recorded != driver::kSuccess) events_.give_back(event);
    driver::check(recorded, "cuEventRecord");
    commit(work, event, status == driver::kCaptureActive);
  } catch (const InvalidArgument& error) {
    withdraw(work, error.what());  // nothing was enqueued, and the communicator lives on
    throw;
  } catch (const Error& error) {
    withdraw(work, error.what());
    end(std::current_exception(), error.what(), true);
    const std::scoped_lock lock(state_mutex_);
    throw_if_ended();
  }
  return work;
}

std::shared_ptr<DeviceWorkState> DeviceCore::begin(const Call& first, std::size_t calls,
                                                   const CallSizes* sizes,
                                                   const Selection& selection,
                                                   driver::Stream stream) {
  auto work = std::make_shared<DeviceWorkState>(shared_from_this());
  work->engine_ = selection.engine;
  work->rule_ = selection.rule;
  const std::scoped_lock lock(state_mutex_);
  throw_if_ended();
  const bool message = is_point_to_point(first.collective);
  work->sequence_ = message ? ++messages_ : log_.collectives() + 1;
  Flight flight;
  flight.work = work;
  flight.note = note_of(first, work->sequence_, calls);
  flight.stream = stream;
  flight.deadline =
      after(Clock::now(), first.timeout > Milliseconds::zero() ? first.timeout : timeout());
  trace::Record record;
  record.sequence = work->sequence_;
  record.collective = first.collective;
  record.bytes = sizes == nullptr ? 0 : sizes->rules_bytes;
  record.dtype = first.dtype;
  record.op = first.op;
  record.root_or_peer = flight.note.root_or_peer;
  record.tag = first.tag;
  record.algorithm = selection.rule == nullptr || selection.rule->choice.algorithm.empty()
                         ? name_of(selection.engine)
                         : std::string_view(selection.rule->choice.algorithm);
  record.calls = static_cast<std::uint32_t>(calls);
  flight.trace = trace_->begin(record);
  if (!message) log_.add(flight.note);
  statistics_.enqueued += calls;
  if (++since_reaped_ >= kReapEvery) reap_half();
  flights_.push_back(std::move(flight));
  return work;
}

void DeviceCore::launch(const Call& call, const Selection& selection, driver::Stream stream) {
  cuda::KernelCall kernel = kernel_call(call);
  kernel.two_shot = selection.two_shot;
  parts_.kernels->launch(kernel, stream);
  const std::scoped_lock lock(state_mutex_);
  ++statistics_.kernel_launches;
}

// Two kernels of one communicator may not run at the same time: a call on another stream than the
// last one waits for that. Between a graph and what is outside of it only the caller can see to it.
void DeviceCore::order_kernels(driver::Stream stream,
                               const std::shared_ptr<DeviceWorkState>& work) {
  const std::uint64_t capture = capture_of(stream);
  if (last_kernel_ != nullptr && stream != last_kernel_stream_ && capture == last_kernel_capture_)
    order(*last_kernel_, stream);
  last_kernel_ = work;
  last_kernel_stream_ = stream;
  last_kernel_capture_ = capture;
}

// NCCL has connected only now, and with it taken the tuner plugin, or not.
void DeviceCore::check_steering() {
  steering_checked_ = true;
  if (const std::string fault = nccl::steering_fault(*parts_.rules); !fault.empty())
    throw SystemError(fault, 0);
}

void DeviceCore::commit(const std::shared_ptr<DeviceWorkState>& work, driver::Event event,
                        bool captured) {
  const std::scoped_lock lock(state_mutex_);
  work->event_ = event;
  work->captured_ = captured;
  // Threads take turns in submit(), so the flight is among the last.
  const auto found = std::find_if(flights_.rbegin(), flights_.rend(),
                                  [&](const Flight& flight) { return flight.work == work; });
  if (found == flights_.rend()) return throw_if_ended();  // ended meanwhile
  trace_->started(found->trace);
  if (!captured) {
    found->enqueued = true;
    return;
  }
  trace_->finished(found->trace, {});
  ++statistics_.captured;
  flights_.erase(std::next(found).base());
}

void DeviceCore::withdraw(const std::shared_ptr<DeviceWorkState>& work, const std::string& why) {
  const std::scoped_lock lock(state_mutex_);
  const auto found = std::find_if(flights_.rbegin(), flights_.rend(),
                                  [&](const Flight& flight) { return flight.work == work; });
  if (found == flights_.rend()) return;
  trace_->failed(found->trace, why);
  ++statistics_.failed;
  flights_.erase(std::next(found).base());
}

void DeviceCore::follow(driver::Stream stream, driver::Stream after_stream) {
  if (stream == after_stream) return;
  const driver::Current current(parts_.context);
  const driver::Event event = events_.take();
  driver::Result result = gpu().event_record(event, after_stream);
  if (result == driver::kSuccess) result = gpu().stream_wait(stream, event, 0);
  events_.give_back(event);  // the wait is for what was recorded, whatever the event does next
  driver::check(result, "Ordering two streams");
}

std::shared_ptr<DeviceCore> DeviceCore::split(int color, int key, const DeviceOptions& wanted) {
  check_process();
  DeviceOptions options = wanted;
  options.device = device_;
  const std::scoped_lock order(order_mutex_);
  {
    const std::scoped_lock lock(state_mutex_);
    throw_if_ended();
  }
  const std::string meeting = concat(parts_.id, "/split/", splits_++, "/", color);
  const auto rules = options.rules != nullptr ? options.rules : parts_.rules;
  auto engine = parts_.engine->split(color, key, engine_options(options, rules));
  if (engine == nullptr) return nullptr;
  auto child = std::make_shared<DeviceCore>(
      join_split(parts_, std::move(engine), meeting, rules, options), options);
  start_watching(child);
  return child;
}

bool DeviceCore::completed(DeviceWorkState& work) {
  const std::scoped_lock lock(state_mutex_);
  if (work.done_) return true;
  if (work.event_ == nullptr || work.captured_) return false;
  const driver::Current current(parts_.context);
  const driver::RelaxedCapture relaxed;
  const auto found = std::find_if(flights_.begin(), flights_.end(),
                                  [&](const Flight& flight) { return flight.work.get() == &work; });
  if (found == flights_.end() || !passed(*found)) return false;
  finish(*found);
  flights_.erase(found);
  return true;
}

bool DeviceCore::wait(DeviceWorkState& work, Milliseconds timeout) {
  if (work.captured_) {
    throw InvalidArgument(
        "A call that was captured into a graph has nothing to wait for on the host; replay the "
        "graph and synchronize its stream.");
  }
  const auto deadline = after(Clock::now(), timeout);
  for (HostWait host; !work.completed(); host.pause()) {
    if (Clock::now() >= deadline) return false;
  }
  if (const auto failure = work.error()) {
    noticed_ = true;
    std::rethrow_exception(failure);
  }
  return true;
}

void DeviceCore::order(DeviceWorkState& work, driver::Stream stream) {
  const driver::Current current(parts_.context);
  const std::scoped_lock lock(state_mutex_);
  if (work.error_) {
    noticed_ = true;
    std::rethrow_exception(work.error_);
  }
  if (work.done_ || work.event_ == nullptr) return;
  driver::check(gpu().stream_wait(stream, work.event_, 0), "cuStreamWaitEvent");
}

bool DeviceCore::passed(const Flight& flight) {
  if (!flight.enqueued) return false;
  const driver::Result result = gpu().event_query(flight.work->event_);
  if (result == driver::kNotReady) return false;
  driver::check(result, "A kernel on the GPU");
  return true;
}

void DeviceCore::finish(Flight& flight) {
  DeviceWorkState& work = *flight.work;
  trace_->finished(flight.trace, {});
  statistics_.completed += 1 + flight.note.others;
  events_.give_back(std::exchange(work.event_, nullptr));
  work.done_.store(true, std::memory_order_release);
}

// A program that never waits on the host leaves its calls here; one question about the middle one
// settles all before it on the same stream.
void DeviceCore::reap_half() {
  since_reaped_ = 0;
  if (flights_.size() < kReapEvery) return;
  const driver::RelaxedCapture relaxed;
  const std::size_t middle = flights_.size() / 2;
  if (!passed(flights_[middle])) return;
  const driver::Stream stream = flights_[middle].stream;
  std::size_t done = 0;
  for (; done <= middle; ++done) {
    if (flights_[done].stream != stream && !passed(flights_[done])) break;
    finish(flights_[done]);
  }
  flights_.erase(flights_.begin(), flights_.begin() + static_cast<std::ptrdiff_t>(done));
}

void DeviceCore::reap() {
  std::vector<driver::Stream> busy;
  for (Flight& flight : flights_) {
    const bool waits = std::find(busy.begin(), busy.end(), flight.stream) != busy.end();
    if (!waits && passed(flight)) {
      finish(flight);
    } else if (!waits) {
      busy.push_back(flight.stream);
    }
  }
  std::erase_if(flights_, [](const Flight& flight) { return flight.work->done_.load(); });
}

void DeviceCore::watch() noexcept {
  if (closed_ || fork_generation() != process_) return;
  try {
    const driver::Current current(parts_.context);
    const driver::RelaxedCapture relaxed;
    {
      const std::scoped_lock lock(state_mutex_);
      if (ended_ == nullptr) reap();
    }
    look_for_faults();
    if (const auto now = Clock::now(); now >= next_look_) {
      look_at_bulletin(now);
      next_look_ = now + parts_.bulletin->interval();
    }
  } catch (const Error& error) {
    conclude(Fault::kNccl, error.what(), {});
  } catch (...) {  // no memory: the next look may have some
  }
}

void DeviceCore::look_for_faults() {
  std::string what = parts_.engine->async_error();
  if (!what.empty()) what = concat("NCCL reports: ", what);
  Fault fault = Fault::kNccl;
  CallNote note;
  bool gave_up = parts_.kernels && parts_.kernels->gave_up();
  {
    const std::scoped_lock lock(state_mutex_);
    if (ended_ != nullptr || concluding_) return;
    const auto now = Clock::now();
    const auto late = std::find_if(flights_.begin(), flights_.end(),
                                   [now](const Flight& flight) { return flight.deadline <= now; });
    if (!flights_.empty()) note = flights_.front().note;
    if (what.empty() && (late != flights_.end() || gave_up)) {
      fault = Fault::kTimeout;
      if (late != flights_.end()) note = late->note;
    } else if (what.empty()) {
      return;
    }
  }
  conclude(fault, what, note);
}

void DeviceCore::look_at_bulletin(Clock::time_point) {
  const auto notice = parts_.bulletin->read();
  if (!notice) return;
  if (!notice->fault) {
    if (notice->text == answered_) return;
    answered_ = notice->text;
    std::string text;
    {
      const std::scoped_lock lock(state_mutex_);
      text = log_.text();
    }
    return parts_.bulletin->answer(notice->text, text);
  }
  if (notice->rank == parts_.rank) return;
  conclude(Fault::kPeer,
           concat("Rank ", notice->rank, " ended communicator '", name_, "': ", notice->text), {});
}

// On a thread of its own: the others are asked first, and that takes seconds.
void DeviceCore::conclude(Fault fault, const std::string& what, const CallNote& note) {
  {
    const std::scoped_lock lock(state_mutex_);
    if (concluding_ || ended_ != nullptr) return;
    concluding_ = true;
  }
  std::thread([self = shared_from_this(), fault, what, note] {
    if (fault == Fault::kPeer) return self->end(made<PeerError>(what), what, false);
    std::string text = what;
    if (note.sequence > 0) {
      text = concat(describe(note), ", call #", note.sequence, " of communicator '", self->name_,
                    "'", what.empty() ? "" : ": ", what);
    }
    if (fault == Fault::kTimeout)
      text += concat(": Timed out after ", self->timeout().count(), " ms on rank ", self->rank());
    text += concat("; ", self->ask_others(fault, note), ".");
    self->end(fault == Fault::kTimeout ? made<TimeoutError>(text) : made<PeerError>(text), text,
              true);
  }).detach();
}

std::string DeviceCore::ask_others(Fault fault, const CallNote& note) {
  const bool message = is_point_to_point(note.collective);
  // Ranks that hang in the same collective ask the same question, and share the answers.
  const std::string number = fault == Fault::kNccl || message
                                 ? concat("rank", rank(), "-", note.sequence)
                                 : concat("call", note.sequence);
  std::string own;
  {
    const std::scoped_lock lock(state_mutex_);
    own = log_.text();
  }
  Bulletin& bulletin = *parts_.bulletin;
  bulletin.answer(number, own);
  std::vector<std::optional<std::string>> answers(static_cast<std::size_t>(size()));
  answers[static_cast<std::size_t>(rank())] = own;
  const auto deadline = Clock::now() + bulletin.interval() * 2 + kAnswerTime;
  const auto missing = [&answers] {
    return std::find(answers.begin(), answers.end(), std::nullopt) != answers.end();
  };
  while (missing() && Clock::now() < deadline) {
    bulletin.ask(number);  // again, since another rank's question may have covered it
    for (int r = 0; r < size() && Clock::now() < deadline; ++r) {
      auto& answer = answers[static_cast<std::size_t>(r)];
      if (!answer) answer = bulletin.wait_for_answer(number, r, kRound);
    }
  }
  std::string text;
  for (int r = 0; r < size(); ++r) {
    const auto& answer = answers[static_cast<std::size_t>(r)];
    std::string finding;
    if (!answer) {
      finding =
          concat("rank ", r,
                 bulletin.has_left(r) ? " has left the communicator"
                                      : " does not answer: its process has ended or stands still");
    } else if (!message && note.sequence > 0 && r != rank()) {
      finding = compare_logs(r, *answer, note.sequence, describe(note));
    }
    if (!finding.empty()) text += concat(text.empty() ? "" : "; ", finding);
  }
  if (!text.empty()) return text;
  return message ? concat("rank ", note.root_or_peer, " is there, but has not made the other half")
                 : std::string(
                       "all ranks have called it, so the GPUs or the network between them "
                       "do not move (NCCL_DEBUG=INFO tells more)");
}

void DeviceCore::end(std::exception_ptr error, const std::string& text, bool tell) {
  {
    const std::scoped_lock lock(state_mutex_);
    if (ended_ != nullptr) return;
    ended_ = error;
    ended_text_ = text;
    for (Flight& flight : flights_) {
      trace_->failed(flight.trace, text);
      ++statistics_.failed;
      flight.work->error_ = error;
      flight.work->done_.store(true, std::memory_order_release);
    }
    flights_.clear();
  }
  trace_->dump(environment().trace_dir, text);
  if (tell) parts_.bulletin->report_fault(text);
  if (on_fault_ == OnFault::kRaise || noticed_) return release_gpu();
  exit_unless_noticed();
}

void DeviceCore::release_gpu() noexcept {
  if (gpu_released_.exchange(true)) return;
  if (parts_.kernels) parts_.kernels->abort();
  parts_.engine->abort();
}

// The GPU is left hanging meanwhile: what follows the call on its stream must not run on data that
// never came. A program that is told by an exception decides for itself.
void DeviceCore::exit_unless_noticed() {
  std::thread([self = shared_from_this()] {
    const auto deadline = Clock::now() + kExitPatience;
    while (!self->noticed_ && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
    if (self->noticed_) return self->release_gpu();
    log(LogLevel::kError,
        concat(self->ended_text_,
               " The process ends now, since what follows on the GPU would run on data that never "
               "came (on_fault=\"raise\" changes that)."));
    std::abort();
  }).detach();
}

void DeviceCore::abort(const std::string& reason) {
  check_process();
  noticed_ = true;
  const std::string text = concat("Communicator '", name_, "' was aborted: ", reason, ".");
  end(made<AbortedError>(text), text, true);
  release_gpu();
}

void DeviceCore::shutdown() {
  if (fork_generation() != process_ || closed_) return;
  bool drained = false;
  {
    const auto deadline = after(Clock::now(), timeout());
    for (HostWait host; !drained; host.pause()) {
      const driver::Current current(parts_.context);
      const driver::RelaxedCapture relaxed;
      const std::scoped_lock lock(state_mutex_);
      if (ended_ != nullptr) break;
      reap();
      drained = flights_.empty();
      if (!drained && Clock::now() >= deadline) break;
    }
  }
  if (closed_.exchange(true)) return;
  noticed_ = true;
  parts_.bulletin->leave();
  if (drained) {
    const std::string text = concat("Communicator '", name_, "' was shut down.");
    {
      const std::scoped_lock lock(state_mutex_);
      ended_ = made<AbortedError>(text);
      ended_text_ = text;
    }
    const std::scoped_lock order(order_mutex_);
    gpu_released_ = true;
    parts_.engine->close();
    return;
  }
  const std::string text = concat("Communicator '", name_,
                                  "' was shut down with calls that had not ended: Timed out "
                                  "after ",
                                  timeout().count(), " ms.");
  end(made<TimeoutError>(text), text, true);
  release_gpu();
  const std::scoped_lock lock(state_mutex_);
  if (ended_text_ == text) throw_if_ended();
}

void DeviceCore::leave_soon() noexcept {
  try {
    if (timeout() > kLeaveTime) timeout_ms_ = kLeaveTime.count();
    shutdown();
  } catch (...) {  // whoever drops a communicator with calls under way is not told
  }
}

std::exception_ptr DeviceCore::error() {
  const std::scoped_lock lock(state_mutex_);
  if (ended_ != nullptr) noticed_ = true;
  return ended_;
}

bool DeviceCore::ready() {
  {
    const std::scoped_lock lock(state_mutex_);
    throw_if_ended();
  }
  const std::unique_lock order(order_mutex_, std::try_to_lock);
  return order.owns_lock() && parts_.engine->ready();
}

void DeviceCore::set_timeout(Milliseconds timeout) {
  if (timeout <= Milliseconds::zero())
    throw InvalidArgument(concat("timeout ", timeout.count(), " ms; expected more than 0."));
  timeout_ms_ = timeout.count();
  if (parts_.kernels) parts_.kernels->set_deadline(timeout);
}

DeviceStatistics DeviceCore::statistics() {
  const std::scoped_lock order(order_mutex_);
  const std::scoped_lock lock(state_mutex_);
  DeviceStatistics statistics = statistics_;
  statistics.nccl_calls = parts_.engine->calls();
  return statistics;
}

std::string DeviceCore::trace_json() const { return trace_->to_json("asked for"); }

}  // namespace accl
