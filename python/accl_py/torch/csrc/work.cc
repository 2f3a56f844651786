#include "work.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "accl/error.h"

namespace accl::adapter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();

std::exception_ptr backend_error(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr store_error(const std::string& message) {
  try {
    C10_THROW_ERROR(DistStoreError, message);
  } catch (...) {
    return std::current_exception();
  }
}

// What is left of a wait that began at `start`; `timeout` of 0 or less has no end.
std::chrono::milliseconds remaining(Clock::time_point start, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return kForever;
  const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  return spent >= timeout ? std::chrono::milliseconds(0) : timeout - spent;
}

}  // namespace

// Recording costs an allocation or two for each call: only while a profiler listens.
const char* title_if_profiled(const char* title) { return at::hasCallbacks() ? title : nullptr; }

std::optional<std::vector<at::Tensor>> inputs_if_profiled(const std::vector<at::Tensor>& inputs) {
  if (!at::hasCallbacks()) return std::nullopt;
  return inputs;
}

std::exception_ptr as_torch_error(const std::exception_ptr& error, const std::string& call) {
  const std::string prefix = "accl " + call + ": ";
  try {
    std::rethrow_exception(error);
  } catch (const StoreError& e) {
    return store_error(prefix + e.what());
  } catch (const Error& e) {
    return backend_error(prefix + e.what());
  } catch (...) {
    return std::current_exception();  // torch's own, or the machine's
  }
}

void Operation::bind(std::vector<std::shared_ptr<Work>> works,
                     std::vector<std::shared_ptr<Operation>> children) {
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(mutex_);
    works_ = std::move(works);
    children_ = std::move(children);
    waiting.swap(waiting_for_bind_);
    bound_.store(true, std::memory_order_release);
  }
  for (auto& done : waiting) watch(std::move(done));
  // The profiler's row has to end even if nobody waits.
  if (end_callback_) when_done([] {});
}

void Operation::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  bind({});
}

bool Operation::works_completed() const noexcept {
  if (!bound_.load(std::memory_order_acquire)) return false;
  for (const auto& work : works_) {
    if (!work->completed()) return false;
  }
  return true;
}

bool Operation::completed() {
  if (finished_.load(std::memory_order_acquire)) return true;
  if (!works_completed()) return false;
  finish();
  return true;
}

void Operation::finish() {
  std::function<void()> end_callback;
  Staging done;
  {
    const std::lock_guard lock(mutex_);
    if (finished_.load(std::memory_order_relaxed)) return;
    for (const auto& work : works_) {
      if (!error_ && work->failed()) error_ = as_torch_error(work->error(), call_);
    }
    try {
      if (!error_) staging_.copy_back();
    } catch (...) {
      error_ = std::current_exception();
    }
    for (const auto& child : children_) child->completed();
    children_.clear();
    std::swap(done, staging_);
    end_callback.swap(end_callback_);
    finished_.store(true, std::memory_order_release);
  }
  // Outside the lock: freeing a tensor may take the GIL, and the callback is the profiler's.
  done.release();
  if (end_callback) end_callback();
}

void Operation::wait(std::chrono::milliseconds timeout) {
  if (!completed()) {
    TORCH_CHECK(bound_.load(std::memory_order_acquire), "accl ", call_,
                ": wait() inside a coalescing block, where nothing is posted yet; leave the block "
                "first, then wait "
                "for what it returns.");
    const auto start = Clock::now();
    for (const auto& work : works_) {
      try {
        if (work->wait(remaining(start, timeout))) continue;
      } catch (const Error&) {
        continue;  // finish() finds it; the others end too, since the first error ends the
                   // communicator
      }
      std::rethrow_exception(
          backend_error("accl " + call_ + ": Timed out after " + std::to_string(timeout.count()) +
                        " ms in wait(); the operation goes on, and may be waited for again."));
    }
    finish();
  }
  if (const auto failure = error()) std::rethrow_exception(failure);
}

std::exception_ptr Operation::error() {
  const std::lock_guard lock(mutex_);
  return finished_.load(std::memory_order_relaxed) ? error_ : nullptr;
}

void Operation::when_done(std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    if (!bound_.load(std::memory_order_relaxed)) {
      waiting_for_bind_.push_back(std::move(done));
      return;
    }
  }
  watch(std::move(done));
}

void Operation::watch(std::function<void()> done) {
  if (completed()) {
    done();
    return;
  }
  // The last work to complete finishes the operation. The closures hold it alive.
  auto left = std::make_shared<std::atomic<std::size_t>>(works_.size());
  for (const auto& work : works_) {
    work->on_complete([self = shared_from_this(), left, done] {
      if (left->fetch_sub(1) != 1) return;
      self->finish();
      done();
    });
  }
}

void Operation::detach() {
  if (!bound_.load(std::memory_order_acquire) || completed()) return;
  watch([] {});
}

WorkACCL::WorkACCL(int rank, c10d::OpType type, const char* title,
                   const std::vector<at::Tensor>& inputs, std::shared_ptr<Operation> operation,
                   std::weak_ptr<Communicator> communicator, std::uint64_t sequence)
    : c10d::Work(rank, type, title_if_profiled(title), inputs_if_profiled(inputs)),
      operation_(std::move(operation)),
      communicator_(std::move(communicator)),
      sequence_(sequence) {
  if (recordFunctionEndCallback_)
    operation_->set_end_callback(std::move(recordFunctionEndCallback_));
}

WorkACCL::~WorkACCL() { operation_->detach(); }

bool WorkACCL::isCompleted() { return operation_->completed(); }

bool WorkACCL::isSuccess() const { return operation_->completed() && !operation_->error(); }

std::exception_ptr WorkACCL::exception() const {
  return operation_->completed() ? operation_->error() : nullptr;
}

bool WorkACCL::wait(std::chrono::milliseconds timeout) {
  operation_->wait(timeout);
  return true;
}

// On the CPU there is no stream to order: whoever may read the results has waited.
void WorkACCL::synchronize() {}
void WorkACCL::blockCurrentStream() { operation_->wait(kNoTimeout); }

void WorkACCL::abort() {
  if (const auto communicator = communicator_.lock()) {
    communicator->abort("Work.abort() of " + operation_->call() + " on rank " +
                        std::to_string(rank_));
  }
}

int WorkACCL::sourceRank() const {
  const auto& works = operation_->works();
  return works.empty() ? -1 : works.front()->source_rank();
}

std::vector<at::Tensor> WorkACCL::result() { return operation_->results(); }

c10::intrusive_ptr<c10::ivalue::Future> WorkACCL::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  operation_->when_done([future = future_, operation = operation_, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard guard(state);
    if (const auto error = operation->error()) {
      future->setError(error);
    } else {
      future->markCompleted(c10::IValue(operation->results()));
    }
  });
  return future_;
}

// The verdict as a number of c10d::WorkResult; this future never holds an error.
c10::intrusive_ptr<c10::ivalue::Future> WorkACCL::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  operation_->when_done([future, operation = operation_] {
    const auto verdict =
        operation->error() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    future->markCompleted(c10::IValue(static_cast<int64_t>(verdict)));
  });
  return future;
}

std::uint64_t WorkACCL::getSequencenumber() const { return sequence_; }

std::vector<WorkReport> WorkACCL::reports() const {
  std::vector<WorkReport> reports;
  for (const auto& work : operation_->works()) reports.push_back(work->report());
  return reports;
}

}  // namespace accl::adapter
