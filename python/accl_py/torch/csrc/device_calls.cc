// Calls with tensors of a GPU: put on a stream, and the handles on them.
//
// A call that the caller waits for at once runs on the current stream, and has no handle; any other
// runs on the group's own stream, which first waits for the current one.
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "backend.h"

namespace accl::adapter {

c10::intrusive_ptr<c10d::Work> BackendACCL::launch_device(Request request) {
  const auto device = request.staging.device();
  const bool message = c10d::isP2POp(request.type);
  const auto sequence = message ? ++transfers_ : ++collectives_;
  if (request.timeout.count() > 0) {
    for (auto& call : request.calls) call.timeout = request.timeout;
  }
  if (Batch* batch = current_batch()) {
    TORCH_CHECK(!batch->device || *batch->device == device, "accl ", request.name(),
                ": the tensor is on ", device.str(), ", but the coalescing block is on ",
                batch->device->str(), ".");
    batch->device = device;
    batch->device_calls.insert(batch->device_calls.end(), request.calls.begin(),
                               request.calls.end());
    auto operation = std::make_shared<DeviceOperation>(request.name(), std::move(request.staging),
                                                       request.results);
    batch->device_operations.push_back(operation);
    return c10::make_intrusive<DeviceWorkACCL>(rank_, request.type, request.title, request.inputs,
                                               std::move(operation), device_side_->made(), device,
                                               sequence, false);
  }
  std::shared_ptr<DeviceCommunicator> communicator;
  if (message) {
    auto [pair, there] = device_side_->toward(request.calls.front().peer, device);
    communicator = std::move(pair);
    request.calls.front().peer = there;
  } else {
    communicator = device_side_->communicator(device);
  }
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const c10::Stream stream = request.async ? device_side_->stream(device) : current;
  auto work = with_torch_errors(request.title + sizeof("accl:") - 1, [&] {
    void* const handle = stream.native_handle();
    if (request.async) communicator->follow(handle, current.native_handle());
    return request.calls.size() == 1 ? communicator->enqueue(request.calls.front(), handle)
                                     : communicator->enqueue_group(request.calls, handle);
  });
  if (!request.async && !request.staging.copies_back() && !at::hasCallbacks()) return nullptr;
  auto operation = std::make_shared<DeviceOperation>(request.name(), std::move(request.staging),
                                                     request.results);
  operation->bind(std::move(work), stream);
  return c10::make_intrusive<DeviceWorkACCL>(rank_, request.type, request.title, request.inputs,
                                             std::move(operation), communicator, device, sequence,
                                             false);
}

c10::intrusive_ptr<c10d::Work> BackendACCL::end_device_batch(Batch& batch) {
  const auto device = *batch.device;
  const auto communicator = device_side_->communicator(device);
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const c10::Stream stream = device_side_->stream(device);
  auto work = with_torch_errors("coalesced", [&] {
    communicator->follow(stream.native_handle(), current.native_handle());
    return communicator->enqueue_group(batch.device_calls, stream.native_handle());
  });
  std::vector<at::Tensor> results;
  for (const auto& child : batch.device_operations) {
    child->bind(work, stream);
    results.insert(results.end(), child->results().begin(), child->results().end());
  }
  auto operation = std::make_shared<DeviceOperation>("coalesced", Staging{}, std::move(results));
  operation->bind(std::move(work), stream, std::move(batch.device_operations));
  const auto& inputs = operation->results();
  return c10::make_intrusive<DeviceWorkACCL>(rank_, c10d::OpType::COALESCED, "accl:coalesced",
                                             inputs, operation, communicator, device,
                                             collectives_.load(), false);
}

// A barrier is one of the GPU where the caller names it, where the group was made for it, and where
// the group has used it already; else one of the processes.
std::optional<c10::Device> BackendACCL::barrier_device(const c10d::BarrierOptions& opts) const {
  // On a machine without GPUs the numbers mean nothing.
  if (!opts.device_ids.empty() && DeviceCommunicator::available()) {
    return c10::Device(c10::DeviceType::CUDA,
                       static_cast<c10::DeviceIndex>(opts.device_ids.front()));
  }
  if (const auto bound = getBoundDeviceId(); bound && bound->is_cuda()) return bound;
  if (const auto made = device_side_->made()) {
    return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(made->device()));
  }
  return std::nullopt;
}

// Blocks the host in wait(), as the barrier of torch's nccl does.
c10::intrusive_ptr<c10d::Work> BackendACCL::device_barrier(const c10d::BarrierOptions& opts) {
  const auto device = *barrier_device(opts);
  const auto sequence = ++collectives_;
  const auto communicator = device_side_->communicator(device);
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  Call call;
  call.collective = Collective::kBarrier;
  if (opts.timeout.count() > 0) call.timeout = opts.timeout;
  auto work = with_torch_errors(
      "barrier", [&] { return communicator->enqueue(call, current.native_handle()); });
  auto operation =
      std::make_shared<DeviceOperation>("barrier", Staging{}, std::vector<at::Tensor>{});
  operation->bind(std::move(work), current);
  return c10::make_intrusive<DeviceWorkACCL>(rank_, c10d::OpType::BARRIER, "accl:barrier",
                                             std::vector<at::Tensor>{}, std::move(operation),
                                             communicator, device, sequence, true);
}

}  // namespace accl::adapter
