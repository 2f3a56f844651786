#include "device_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <thread>
#include <utility>

#include "work.h"

namespace accl::adapter {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void DeviceOperation::bind(std::shared_ptr<DeviceWork> work, const c10::Stream& stream,
                           std::vector<std::shared_ptr<DeviceOperation>> children) {
  const std::lock_guard lock(mutex_);
  if (staging_.copies_back()) {
    const c10::StreamGuard guard(stream);
    staging_.copy_back();
    copied_.emplace(stream.device_type());
    copied_->record(stream);
  }
  children_ = std::move(children);
  stream_ = stream;
  work_ = std::move(work);
}

std::shared_ptr<DeviceWork> DeviceOperation::work() const {
  const std::lock_guard lock(mutex_);
  return work_;
}

std::shared_ptr<DeviceWork> DeviceOperation::bound() const {
  auto work = this->work();
  TORCH_CHECK(work != nullptr, "accl ", call_,
              ": wait() inside a coalescing block, where nothing is posted yet; leave the block "
              "first, then wait for what it returns.");
  return work;
}

bool DeviceOperation::completed() {
  const auto work = this->work();
  if (work == nullptr || !work->completed()) return false;
  for (const auto& child : children_) {
    if (!child->completed()) return false;
  }
  return !copied_ || work->error() || copied_->query();
}

std::exception_ptr DeviceOperation::error() {
  const auto work = this->work();
  const auto error = work == nullptr ? nullptr : work->error();
  return error ? as_torch_error(error, call_) : nullptr;
}

void DeviceOperation::order(const c10::Stream& stream) {
  const auto work = bound();
  with_torch_errors(call_, [&] { work->order(stream.native_handle()); });
  if (copied_) copied_->block(stream);
  for (const auto& child : children_) child->order(stream);
}

void DeviceOperation::wait_on_host(std::chrono::milliseconds timeout) {
  const auto work = bound();
  const auto limit = timeout.count() > 0 ? timeout : std::chrono::milliseconds::max();
  const bool done = with_torch_errors(call_, [&] { return work->wait(limit); });
  TORCH_CHECK_WITH(DistBackendError, done, "accl ", call_, ": Timed out after ", timeout.count(),
                   " ms in wait(); the operation goes on, and may be waited for again.");
  if (copied_) copied_->synchronize();
  for (const auto& child : children_) child->wait_on_host(timeout);
}

// Outside the lock: freeing a tensor may take the GIL.
void DeviceOperation::release() {
  Staging done;
  {
    const std::lock_guard lock(mutex_);
    std::swap(done, staging_);
  }
  done.release();
  for (const auto& child : children_) child->release();
}

void DeviceOperation::detach() {
  {
    const std::lock_guard lock(mutex_);
    if (work_ == nullptr) return;  // its block holds it
    staging_.record_stream(*stream_);
  }
  for (const auto& child : children_) child->detach();
  release();
}

DeviceWorkACCL::DeviceWorkACCL(int rank, c10d::OpType type, const char* title,
                               const std::vector<at::Tensor>& inputs,
                               std::shared_ptr<DeviceOperation> operation,
                               std::weak_ptr<DeviceCommunicator> communicator, c10::Device device,
                               std::uint64_t sequence, bool on_host)
    : c10d::Work(rank, type, title_if_profiled(title), inputs_if_profiled(inputs)),
      operation_(std::move(operation)),
      communicator_(std::move(communicator)),
      device_(device),
      sequence_(sequence),
      on_host_(on_host) {}

DeviceWorkACCL::~DeviceWorkACCL() {
  try {
    operation_->detach();
    // The row of the profiler is of the host, where the call is over.
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  } catch (const std::exception& e) {
    TORCH_WARN("accl ", operation_->call(), ": ", e.what());
  }
}

bool DeviceWorkACCL::isCompleted() { return operation_->completed(); }

bool DeviceWorkACCL::isSuccess() const { return operation_->completed() && !operation_->error(); }

std::exception_ptr DeviceWorkACCL::exception() const { return operation_->error(); }

bool DeviceWorkACCL::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (on_host_ || timeout.count() > 0) operation_->wait_on_host(timeout);
  return true;
}

void DeviceWorkACCL::synchronize() {
  operation_->order(current_stream(device_));
  operation_->release();
}

void DeviceWorkACCL::abort() {
  if (const auto communicator = communicator_.lock()) {
    communicator->abort("Work.abort() of " + operation_->call() + " on rank " +
                        std::to_string(rank_));
  }
}

// NCCL has no receive from any source; who received knows from whom.
int DeviceWorkACCL::sourceRank() const {
  TORCH_CHECK(false, "accl ", operation_->call(),
              ": the source rank is the one that recv was called with; there is no other on GPUs.");
}

std::vector<at::Tensor> DeviceWorkACCL::result() { return operation_->results(); }

// Complete at once for the host; its callbacks run on streams that wait for the call.
c10::intrusive_ptr<c10::ivalue::Future> DeviceWorkACCL::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device_});
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream stream = guard.getStreamFromGlobalPool(device_);
  {
    const c10::StreamGuard on(stream);
    operation_->order(stream);
    future_->markCompleted(c10::IValue(operation_->results()));
  }
  return future_;
}

// The verdict as a number of c10d::WorkResult; this future never holds an error.
c10::intrusive_ptr<c10::ivalue::Future> DeviceWorkACCL::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  std::thread([future, operation = operation_] {
    auto verdict = c10d::WorkResult::SUCCESS;
    try {
      operation->wait_on_host(kNoTimeout);
    } catch (const std::exception&) {
      verdict = c10d::WorkResult::COMM_ERROR;
    }
    future->markCompleted(c10::IValue(static_cast<int64_t>(verdict)));
  }).detach();
  return future;
}

WorkReport DeviceWorkACCL::report() const {
  const auto work = operation_->work();
  return work == nullptr ? WorkReport{} : work->report();
}

accl::Engine DeviceWorkACCL::engine() const {
  const auto work = operation_->work();
  return work == nullptr ? accl::Engine::kNccl : work->engine();
}

}  // namespace accl::adapter
