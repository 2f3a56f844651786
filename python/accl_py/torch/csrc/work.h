// Operation: what one c10d call posted to the engine, and what is left to do when the engine is
// done. WorkACCL: the handle on it that torch sees.
//
// The operation outlives the handle where it must: torch programs drop handles of calls that are
// under way, and the memory that the engine reads and writes has to stay until the call is
// complete.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "accl/communicator.h"
#include "accl/error.h"
#include "tensors.h"

namespace accl::adapter {

// The engine's error as torch's own types, so that Python shows DistBackendError (or
// DistStoreError), both RuntimeErrors.
std::exception_ptr as_torch_error(const std::exception_ptr& error, const std::string& call);

// Runs `body`; what it throws of the engine's errors leaves as torch's.
template <typename Body>
auto with_torch_errors(const std::string& call, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(std::current_exception(), call));
  }
}

// What c10d::Work records for a profiler: nothing, unless one listens.
const char* title_if_profiled(const char* title);
std::optional<std::vector<at::Tensor>> inputs_if_profiled(const std::vector<at::Tensor>& inputs);

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::string call, Staging staging, std::vector<at::Tensor> results)
      : call_(std::move(call)), staging_(std::move(staging)), results_(std::move(results)) {}

  // The engine's works; called once, when the calls are posted. Until then (inside a coalescing
  // block) the operation is neither complete nor can it be waited for. `children` are operations
  // that these works also carry out: they finish with this one.
  void bind(std::vector<std::shared_ptr<Work>> works,
            std::vector<std::shared_ptr<Operation>> children = {});

  // In place of bind(): the calls could not be posted.
  void fail(std::exception_ptr error);

  // True once the results are in the caller's tensors, or an error is known.
  bool completed();

  // Drives the engine until complete; throws the error. Throws also when `timeout` passes first,
  // and then the operation goes on and the group stays usable. Zero or less waits until the call's
  // own deadline.
  void wait(std::chrono::milliseconds timeout);

  // The error after completion, else null.
  std::exception_ptr error();

  // Calls `done` once after completion: on a thread of the engine's completion pool, where it may
  // block, or at once if the operation is complete already.
  void when_done(std::function<void()> done);

  // The handle is gone: makes sure that the results arrive and the memory stays until then.
  void detach();

  // Runs right after the results have arrived; set before bind().
  void set_end_callback(std::function<void()> callback) { end_callback_ = std::move(callback); }

  const std::string& call() const noexcept { return call_; }
  const std::vector<at::Tensor>& results() const noexcept { return results_; }
  const std::vector<std::shared_ptr<Work>>& works() const noexcept { return works_; }

 private:
  bool works_completed() const noexcept;
  void finish();
  void watch(std::function<void()> done);

  const std::string call_;
  Staging staging_;
  const std::vector<at::Tensor> results_;
  std::function<void()> end_callback_;

  // Written by bind() before `bound_` is set, constant after.
  std::vector<std::shared_ptr<Work>> works_;
  std::vector<std::shared_ptr<Operation>> children_;
  std::atomic<bool> bound_{false};

  std::mutex mutex_;  // of all below; finish() copies under it, so that nobody reads half a result
  std::exception_ptr error_;
  std::vector<std::function<void()>> waiting_for_bind_;
  std::atomic<bool> finished_{false};
};

class WorkACCL : public c10d::Work {
 public:
  // `title` appears in the profiler, with the shapes of `inputs`. `communicator` is the one to
  // abort.
  WorkACCL(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
           std::shared_ptr<Operation> operation, std::weak_ptr<Communicator> communicator,
           std::uint64_t sequence);
  ~WorkACCL() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override;
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override;

  // What the engine did, one entry for each of its works. Complete operations only.
  std::vector<WorkReport> reports() const;

 private:
  const std::shared_ptr<Operation> operation_;
  const std::weak_ptr<Communicator> communicator_;
  const std::uint64_t sequence_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accl::adapter
