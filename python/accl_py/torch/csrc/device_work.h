// DeviceOperation: what one c10d call put on a stream of a GPU, and the memory that must stay until
// then. DeviceWorkACCL: the handle on it that torch sees.
//
// The streams of torch decide what may be read when: wait() makes the current stream wait for the
// call and does not stop the host. Tensors of an asynchronous call are held until wait(); where
// nobody waits, torch's allocator is told which stream uses them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "accl/device.h"
#include "tensors.h"

namespace accl::adapter {

class DeviceOperation {
 public:
  DeviceOperation(std::string call, Staging staging, std::vector<at::Tensor> results)
      : call_(std::move(call)), staging_(std::move(staging)), results_(std::move(results)) {}

  // The call was put on `stream`; staged results are copied back there. `children` are operations
  // that this one carries out too. Called once.
  void bind(std::shared_ptr<DeviceWork> work, const c10::Stream& stream,
            std::vector<std::shared_ptr<DeviceOperation>> children = {});

  bool completed();
  std::exception_ptr error();

  // Makes `stream` wait. Throws the error that ended the communicator.
  void order(const c10::Stream& stream);

  // Lets go of the memory, once the current stream waits.
  void release();

  // Blocks the host too. Throws where `timeout` (above 0) passes first.
  void wait_on_host(std::chrono::milliseconds timeout);

  // Nobody will wait: the allocator keeps the memory from being used again too early.
  void detach();

  const std::string& call() const noexcept { return call_; }
  const std::vector<at::Tensor>& results() const noexcept { return results_; }
  std::shared_ptr<DeviceWork> work() const;

 private:
  std::shared_ptr<DeviceWork> bound() const;  // throws inside a coalescing block

  const std::string call_;
  mutable std::mutex mutex_;
  Staging staging_;
  const std::vector<at::Tensor> results_;
  std::shared_ptr<DeviceWork> work_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> copied_;  // after the staged results; else work_ tells all
  std::vector<std::shared_ptr<DeviceOperation>> children_;
};

class DeviceWorkACCL : public c10d::Work {
 public:
  // `on_host`: wait() blocks the host, as that of a barrier must.
  DeviceWorkACCL(int rank, c10d::OpType type, const char* title,
                 const std::vector<at::Tensor>& inputs, std::shared_ptr<DeviceOperation> operation,
                 std::weak_ptr<DeviceCommunicator> communicator, c10::Device device,
                 std::uint64_t sequence, bool on_host);
  ~DeviceWorkACCL() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // A timeout above 0 makes it block the host, and throws where it passes.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

  // Which engine ran it, and by which rule.
  WorkReport report() const;
  accl::Engine engine() const;

 private:
  const std::shared_ptr<DeviceOperation> operation_;
  const std::weak_ptr<DeviceCommunicator> communicator_;
  const c10::Device device_;
  const std::uint64_t sequence_;
  const bool on_host_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accl::adapter
