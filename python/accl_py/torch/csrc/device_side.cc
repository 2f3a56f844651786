#include "device_side.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "store.h"
#include "work.h"

namespace accl::adapter {
namespace {

// The watchdog reads the store beside the program, and a store of torch serves one call at a time.
c10::intrusive_ptr<c10d::Store> own_connection(const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    return store->clone();
  } catch (const std::exception&) {  // a store that cannot be cloned is shared
    return store;
  }
}

}  // namespace

DeviceSide::DeviceSide(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       c10::intrusive_ptr<GroupOptions> options)
    : store_(std::move(store)), rank_(rank), size_(size), options_(std::move(options)) {}

void DeviceSide::require_device(c10::Device device) const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!device_ || *device_ == device, "accl: a tensor is on ", device.str(),
              ", but this rank's part of the group is on ", device_->str(),
              "; a group has one GPU a rank: call torch.cuda.set_device first.");
}

std::shared_ptr<DeviceCommunicator> DeviceSide::made() const {
  const std::lock_guard lock(mutex_);
  return main_;
}

std::vector<std::shared_ptr<DeviceCommunicator>> DeviceSide::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<DeviceCommunicator>> all;
  if (main_) all.push_back(main_);
  for (const auto& [peer, communicator] : pairs_) all.push_back(communicator);
  return all;
}

std::shared_ptr<DeviceCommunicator> DeviceSide::make(const std::string& suffix, int rank, int size,
                                                     c10::Device device) {
  require_device(device);
  auto communicator = with_torch_errors("init", [&] {
    auto made = options_->device_options(device.index());
    made.name += suffix;
    return DeviceCommunicator::create(std::make_shared<TorchStore>(own_connection(store_)), rank,
                                      size, made);
  });
  const std::lock_guard lock(mutex_);
  device_ = device;
  return communicator;
}

std::shared_ptr<DeviceCommunicator> DeviceSide::communicator(c10::Device device) {
  {
    const std::lock_guard lock(mutex_);
    if (main_ && *device_ == device) return main_;
  }
  const std::lock_guard making(making_);
  require_device(device);
  if (auto there = made()) return there;
  auto fresh = make("", rank_, size_, device);
  const std::lock_guard lock(mutex_);
  return main_ = std::move(fresh);
}

void DeviceSide::connect(c10::Device device) {
  communicator(device);
  const std::lock_guard lock(mutex_);
  connected_ = true;
}

std::pair<std::shared_ptr<DeviceCommunicator>, int> DeviceSide::toward(int peer,
                                                                       c10::Device device) {
  {
    const std::lock_guard lock(mutex_);
    if (connected_) {
      TORCH_CHECK(*device_ == device, "accl: a tensor is on ", device.str(),
                  ", but the group is on ", device_->str(), ".");
      return {main_, peer};
    }
  }
  const int low = std::min(rank_, peer);
  const int high = std::max(rank_, peer);
  const int ranks = low == high ? 1 : 2;
  const int there = peer == low ? 0 : 1;
  const std::lock_guard making(making_);
  require_device(device);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = pairs_.find(peer); found != pairs_.end()) return {found->second, there};
  }
  auto fresh = make("/" + std::to_string(low) + "-" + std::to_string(high), rank_ == low ? 0 : 1,
                    ranks, device);
  const std::lock_guard lock(mutex_);
  return {pairs_[peer] = std::move(fresh), there};
}

std::shared_ptr<DeviceCommunicator> DeviceSide::split(int color, int key,
                                                      const GroupOptions& options) {
  const auto parent = made();
  if (parent == nullptr) return nullptr;
  return with_torch_errors(
      "split", [&] { return parent->split(color, key, options.device_options(parent->device())); });
}

void DeviceSide::adopt(std::shared_ptr<DeviceCommunicator> communicator) {
  const std::lock_guard lock(mutex_);
  device_ =
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(communicator->device()));
  main_ = std::move(communicator);
  connected_ = true;
}

c10::Stream DeviceSide::stream(c10::Device device) {
  const std::lock_guard lock(mutex_);
  if (!stream_) {
    stream_ = c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, options_->is_high_priority_stream);
  }
  return *stream_;
}

}  // namespace accl::adapter
