// The torch.distributed backend `accl`: c10d::Backend over accl::Communicator.
//
// Each method checks its arguments, stages tensors whose layout the engine cannot take (tensors.h),
// posts one or more engine calls and returns a WorkACCL (work.h). Errors that a caller can mend are
// thrown at once and nothing is posted then; errors of the call itself come from the work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>
#include <vector>

#include "accl/communicator.h"
#include "device_side.h"
#include "device_work.h"
#include "options.h"
#include "request.h"
#include "tensors.h"
#include "work.h"

namespace accl::adapter {

class BackendACCL : public c10d::Backend {
 public:
  // Collective over the group: returns when every rank has come. Throws DistBackendError (a rank
  // did not come within the timeout, or differs in size or rules) and DistStoreError.
  BackendACCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              c10::intrusive_ptr<GroupOptions> options);
  ~BackendACCL() override;

  const std::string getBackendName() const override { return "accl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  c10::intrusive_ptr<GroupOptions> options_copy() const;

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;

  // Rank 0 names the ranks that did not come within the timeout; with `wait_all_ranks` all of them,
  // else the first. Blocks. A barrier that fails ends the group.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Between start and end, sends and receives of the calling thread are collected and posted as one
  // group; collectives are posted at once. The work of endCoalescing() stands for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // A group of the given ranks of this one (in that order), made through `store`; null on other
  // ranks.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return collectives_.load(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void enableCollectivesTiming() override {}  // the engine's trace always holds the times
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // Makes the communicator of a GPU now, on every rank, rather than at the first call.
  void eagerConnectSingleDevice(at::Device device) override;

  // The CPU communicator. Throws where the ranks are on several hosts.
  Communicator& communicator() const;

  // That of the GPU; null before the first call with CUDA tensors.
  std::shared_ptr<DeviceCommunicator> device_communicator() const { return device_side_->made(); }

 private:
  // What a thread has collected since startCoalescing().
  struct Batch {
    std::vector<Call> calls;                              // sends and receives, not posted yet
    std::vector<std::shared_ptr<Operation>> transfers;    // of `calls`, in order
    std::vector<std::shared_ptr<Operation>> collectives;  // posted already
    std::optional<c10::Device> device;                    // of the GPU's calls
    std::vector<Call> device_calls;                       // not enqueued yet
    std::vector<std::shared_ptr<DeviceOperation>> device_operations;
  };

  // Posts the request, or puts it into the calling thread's batch.
  c10::intrusive_ptr<c10d::Work> launch(Request request);
  void post(const std::vector<Call>& calls, Operation& operation);
  Batch* current_batch();

  // The same for tensors of a GPU (device_calls.cc).
  c10::intrusive_ptr<c10d::Work> launch_device(Request request);
  c10::intrusive_ptr<c10d::Work> device_barrier(const c10d::BarrierOptions& opts);
  c10::intrusive_ptr<c10d::Work> end_device_batch(Batch& batch);
  std::optional<c10::Device> barrier_device(const c10d::BarrierOptions& opts) const;

  // Each adds one engine call to the request (collectives.cc).
  void add_all_reduce(Request& request, const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  void add_all_gather(Request& request, const at::Tensor& output, const at::Tensor& input) const;
  void add_all_gather_list(Request& request, const std::vector<at::Tensor>& outputs,
                           const at::Tensor& input) const;
  void add_reduce_scatter(Request& request, const at::Tensor& output, const at::Tensor& input,
                          const c10d::ReduceOp& op) const;
  c10::intrusive_ptr<c10d::Work> point_to_point(c10d::OpType type, const char* title,
                                                const std::vector<at::Tensor>& tensors, int peer,
                                                int tag);

  // Sparse tensors (sparse.cc).
  at::Tensor sum_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout);
  std::vector<at::Tensor> gather_rows(const at::Tensor& own, const std::vector<int64_t>& lengths,
                                      std::chrono::milliseconds timeout);

  // monitoredBarrier (backend.cc).
  void wait_for_ranks(std::chrono::milliseconds timeout, bool wait_all_ranks, int tag);
  void report_to_rank_zero(std::chrono::milliseconds timeout, int tag);
  std::shared_ptr<Operation> post_token(Collective collective, int peer, int tag,
                                        std::chrono::milliseconds timeout);

  void check_root(int64_t root, const Request& request) const;
  void check_length(std::size_t length, const std::string& what) const;
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  std::size_t own() const { return static_cast<std::size_t>(rank_); }

  std::shared_ptr<Communicator> communicator_;  // null where cpu_fault_ says why
  std::exception_ptr cpu_fault_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const std::unique_ptr<DeviceSide> device_side_;
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<std::uint64_t> transfers_{0};  // sends and receives
  std::atomic<int> monitored_barriers_{0};

  mutable std::mutex mutex_;  // of all below, and of options_' fields
  std::unordered_map<std::thread::id, std::unique_ptr<Batch>> batches_;
  std::atomic<std::size_t> open_batches_{0};  // lets launch() skip the lock when there is none
  // The last call of split(): torch asks once for each device type of the group, with one store,
  // and gets the same child. Holding the store keeps its address from being used again.
  c10::intrusive_ptr<c10d::Store> split_store_;
  c10::weak_intrusive_ptr<c10d::Backend> split_child_;
};

}  // namespace accl::adapter
