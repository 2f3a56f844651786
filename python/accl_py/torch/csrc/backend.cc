// Life of a group: making, posting, coalescing, splitting, ending. The collectives are in
// collectives.cc.
#include "backend.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "accl/error.h"
#include "store.h"

namespace accl::adapter {
namespace {

std::shared_ptr<Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                int rank, int size, const GroupOptions& options) {
  TORCH_CHECK(options.timeout.count() > 0, "accl: the group's timeout is ", options.timeout.count(),
              " ms, expected more than 0.");
  CommunicatorOptions made;
  made.timeout = options.timeout;
  if (!options.group_name.empty()) made.name = options.group_name;
  try {
    if (!options.rules.empty())
      made.rules = std::make_shared<const Rules>(Rules::load(options.rules));
    TorchStore keys(store);
    return Communicator::create(keys, rank, size, made);
  } catch (const SeveralHostsError&) {
    throw;
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(std::current_exception(), "init"));
  }
}

// Tags of monitoredBarrier count up from the smallest number, far from those that programs use.
constexpr int kFirstMonitoredTag = std::numeric_limits<int>::min();

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

BackendACCL::BackendACCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      device_side_(std::make_unique<DeviceSide>(store, rank, size, options_)),
      split_child_(c10::intrusive_ptr<c10d::Backend>()) {
  try {
    communicator_ = make_communicator(store, rank, size, *options_);
  } catch (const SeveralHostsError&) {  // on every rank; NCCL may well connect them
    cpu_fault_ = as_torch_error(std::current_exception(), "cpu");
  }
}

BackendACCL::~BackendACCL() = default;

Communicator& BackendACCL::communicator() const {
  if (communicator_ == nullptr) std::rethrow_exception(cpu_fault_);
  return *communicator_;
}

void BackendACCL::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cuda()) device_side_->connect(device);
}

c10::intrusive_ptr<GroupOptions> BackendACCL::options_copy() const {
  const std::lock_guard lock(mutex_);
  return copy_of(*options_);
}

// torch writes the name and timeout of a child group into what this returns.
c10::intrusive_ptr<c10d::Backend::Options> BackendACCL::getBackendOptions() {
  return options_copy();
}

c10::intrusive_ptr<c10d::Work> BackendACCL::launch(Request request) {
  if (!request.staging.device().is_cpu()) return launch_device(std::move(request));
  const bool transfer = c10d::isP2POp(request.type);
  const auto sequence = transfer ? ++transfers_ : ++collectives_;
  Batch* batch = current_batch();
  for (auto& call : request.calls) {
    if (request.timeout.count() > 0) call.timeout = request.timeout;
    call.background = request.async || batch != nullptr;
  }
  auto operation =
      std::make_shared<Operation>(request.name(), std::move(request.staging), request.results);
  auto work = c10::make_intrusive<WorkACCL>(rank_, request.type, request.title, request.inputs,
                                            operation, communicator_, sequence);
  if (batch != nullptr && transfer) {
    batch->calls.insert(batch->calls.end(), request.calls.begin(), request.calls.end());
    batch->transfers.push_back(std::move(operation));
    return work;
  }
  post(request.calls, *operation);
  if (batch != nullptr) batch->collectives.push_back(std::move(operation));
  return work;
}

void BackendACCL::post(const std::vector<Call>& calls, Operation& operation) {
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(calls.size());
  try {
    for (const auto& call : calls) works.push_back(communicator().post(call));
  } catch (const Error&) {
    const auto error = as_torch_error(std::current_exception(), operation.call());
    operation.bind(std::move(works));  // those under way still need their memory
    std::rethrow_exception(error);
  }
  operation.bind(std::move(works));
}

BackendACCL::Batch* BackendACCL::current_batch() {
  if (open_batches_.load() == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(std::this_thread::get_id());
  return found == batches_.end() ? nullptr : found->second.get();
}

void BackendACCL::startCoalescing() {
  // A batch that an exception left open was never posted; it is dropped here.
  const std::lock_guard lock(mutex_);
  batches_[std::this_thread::get_id()] = std::make_unique<Batch>();
  open_batches_.store(batches_.size());
}

c10::intrusive_ptr<c10d::Work> BackendACCL::endCoalescing() {
  std::unique_ptr<Batch> batch;
  {
    const std::lock_guard lock(mutex_);
    const auto found = batches_.find(std::this_thread::get_id());
    TORCH_CHECK(found != batches_.end(),
                "accl end_coalescing: this thread has not called start_coalescing on the group.");
    batch = std::move(found->second);
    batches_.erase(found);
    open_batches_.store(batches_.size());
  }
  if (!batch->device_calls.empty()) {
    TORCH_CHECK(batch->calls.empty() && batch->collectives.empty(),
                "accl coalesced: tensors of the CPU and of ", batch->device->str(),
                " are in one block; expected all on one device.");
    return end_device_batch(*batch);
  }
  std::vector<std::shared_ptr<Operation>> children = batch->collectives;
  children.insert(children.end(), batch->transfers.begin(), batch->transfers.end());
  std::vector<at::Tensor> results;
  for (const auto& child : children) {
    results.insert(results.end(), child->results().begin(), child->results().end());
  }
  auto operation = std::make_shared<Operation>("coalesced", Staging{}, std::move(results));
  auto work = c10::make_intrusive<WorkACCL>(rank_, c10d::OpType::COALESCED, "accl:coalesced",
                                            operation->results(), operation, communicator_,
                                            collectives_.load());
  std::vector<std::shared_ptr<Work>> works;
  for (const auto& child : batch->collectives) {
    works.insert(works.end(), child->works().begin(), child->works().end());
  }
  if (!batch->calls.empty()) {
    try {
      works.push_back(communicator().post_group(batch->calls));
    } catch (const Error&) {
      const auto error = as_torch_error(std::current_exception(), "coalesced");
      for (const auto& transfer : batch->transfers) transfer->fail(error);
      std::rethrow_exception(error);
    }
    for (const auto& transfer : batch->transfers) transfer->bind({works.back()});
  }
  operation->bind(std::move(works), std::move(children));
  return work;
}

c10::intrusive_ptr<c10d::Backend> BackendACCL::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  // Torch calls this on every rank of the group, also on those that are not in `ranks`.
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  const bool member = self != ranks.end();
  auto options = opts ? copy_of(*opts) : options_copy();
  {
    const std::lock_guard lock(mutex_);
    if (store == split_store_) {
      auto sibling = split_child_.lock();
      if (sibling || !member) return sibling;
    }
    split_store_ = store;
    split_child_ = c10::weak_intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>());
  }
  if (!member) {
    if (options_->split_share) device_side_->split(-1, 0, *options_);
    return nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    if (options->rules.empty()) options->rules = options_->rules;
    options->global_ranks_in_group.clear();
    for (const int rank : ranks) {
      const auto global = static_cast<std::size_t>(rank);
      const bool known = global < options_->global_ranks_in_group.size();
      options->global_ranks_in_group.push_back(known ? options_->global_ranks_in_group[global]
                                                     : global);
    }
  }
  auto child = c10::make_intrusive<BackendACCL>(store, static_cast<int>(self - ranks.begin()),
                                                static_cast<int>(ranks.size()), options);
  const int own = static_cast<int>(self - ranks.begin());
  if (options_->split_share) {
    // Only NCCL's own split can share. The colours are disjoint, so the first rank of each tells it
    // from the others.
    if (auto part = device_side_->split(ranks.front(), own, *options))
      child->device_side_->adopt(std::move(part));
  } else if (const auto made = device_side_->made()) {
    child->device_side_->connect(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(made->device())));
  }
  const std::lock_guard lock(mutex_);
  split_child_ = c10::weak_intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>(child));
  return child;
}

void BackendACCL::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "accl set_timeout: got ", timeout.count(),
              " ms, expected more than 0.");
  if (communicator_) communicator_->set_timeout(timeout);
  for (const auto& device : device_side_->all()) device->set_timeout(timeout);
  const std::lock_guard lock(mutex_);
  options_->timeout = timeout;
}

c10d::ErrorType BackendACCL::getError() {
  auto error = communicator_ ? communicator_->error() : nullptr;
  for (const auto& device : device_side_->all()) {
    if (!error) error = device->error();
  }
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerError&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (...) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

void BackendACCL::abort() {
  const std::string why = "abort() was called on rank " + std::to_string(rank_);
  for (const auto& device : device_side_->all()) device->abort(why);
  if (communicator_) communicator_->abort(why);
}

void BackendACCL::shutdown() {
  const auto leave = [this](auto& communicator) {
    try {
      communicator.shutdown();
    } catch (const Error& e) {
      // Who destroys a group after a fault has seen the fault already.
      TORCH_WARN("accl: shutdown of group \"", communicator.name(), "\" on rank ", rank_, ": ",
                 e.what());
    }
  };
  for (const auto& device : device_side_->all()) leave(*device);
  if (communicator_) leave(*communicator_);
}

void BackendACCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const auto timeout = opts.timeout.count() < 0 ? communicator().timeout() : opts.timeout;
  TORCH_CHECK_WITH(DistBackendError, timeout.count() > 0, "accl: Rank ", rank_,
                   " timed out in monitoredBarrier after ", timeout.count(), " ms.");
  const int tag = kFirstMonitoredTag + monitored_barriers_++;
  if (rank_ == 0) {
    wait_for_ranks(timeout, wait_all_ranks, tag);
  } else {
    report_to_rank_zero(timeout, tag);
  }
}

std::shared_ptr<Operation> BackendACCL::post_token(Collective collective, int peer, int tag,
                                                   std::chrono::milliseconds timeout) {
  const auto token = at::zeros({1}, at::kByte);
  Staging staging;
  Call call;
  call.collective = collective;
  call.count = 1;
  call.dtype = DType::kUint8;
  call.peer = peer;
  call.tag = tag;
  call.timeout = timeout;
  call.background = true;
  void* memory = staging.output(token, "accl monitored_barrier: token");
  (collective == Collective::kSend ? call.input : call.output).data = memory;
  auto operation = std::make_shared<Operation>("monitored_barrier", std::move(staging),
                                               std::vector<at::Tensor>{token});
  post({call}, *operation);
  return operation;
}

void BackendACCL::wait_for_ranks(std::chrono::milliseconds timeout, bool wait_all_ranks, int tag) {
  std::vector<std::shared_ptr<Operation>> tokens;
  for (int peer = 1; peer < size_; ++peer) {
    tokens.push_back(post_token(Collective::kRecv, peer, tag, timeout));
  }
  std::vector<int> missing;
  for (int peer = 1; peer < size_ && (missing.empty() || wait_all_ranks); ++peer) {
    const auto& token = tokens[static_cast<std::size_t>(peer - 1)];
    try {
      token->wait(kNoTimeout);
    } catch (const c10::Error&) {
      missing.push_back(peer);
    }
  }
  for (const auto& token : tokens) token->detach();  // those that nobody waited for
  TORCH_CHECK_WITH(DistBackendError, missing.empty(),
                   "accl: ", missing.size() > 1 ? "Ranks " : "Rank ", joined(missing),
                   " failed to pass monitoredBarrier in ", timeout.count(),
                   " ms ( Timed out, or the connection is gone).");
  for (int peer = 1; peer < size_; ++peer) {
    post_token(Collective::kSend, peer, tag, timeout)->wait(kNoTimeout);
  }
}

void BackendACCL::report_to_rank_zero(std::chrono::milliseconds timeout, int tag) {
  const auto sent = post_token(Collective::kSend, 0, tag, timeout);
  const auto answer = post_token(Collective::kRecv, 0, tag, timeout);
  try {
    answer->wait(kNoTimeout);
    sent->wait(kNoTimeout);
  } catch (const c10::Error& e) {
    sent->detach();
    TORCH_CHECK_WITH(DistBackendError, false, "accl: Rank ", rank_,
                     " successfully reached monitoredBarrier, but rank 0 did not answer within ",
                     timeout.count(), " ms; its log names the faulty rank. (",
                     e.what_without_backtrace(), ")");
  }
}

}  // namespace accl::adapter
