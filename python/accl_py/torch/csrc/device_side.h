// DeviceSide: the GPU half of a group: its communicators, made when first needed, and the stream of
// its asynchronous calls.
//
// Collectives, and messages of a batch, go over one communicator of all ranks. A send or recv of
// its own goes over it too where the group was made for a device (`device_id`); else over one of
// the two ranks alone, since the others may never come: so torch's nccl backend does it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "accl/device.h"
#include "options.h"

namespace accl::adapter {

class DeviceSide {
 public:
  DeviceSide(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             c10::intrusive_ptr<GroupOptions> options);

  // The communicator of all ranks. Collective the first time. Throws (RuntimeError in Python) where
  // the group is on another device already.
  std::shared_ptr<DeviceCommunicator> communicator(c10::Device device);

  // The one for a single message to or from `peer` (>= 0), and the peer's rank in it.
  std::pair<std::shared_ptr<DeviceCommunicator>, int> toward(int peer, c10::Device device);

  // As communicator(), but says that every rank has done it: messages may use it, too.
  void connect(c10::Device device);

  // A side for the ranks of one colour that is split off NCCL's communicator, or null where there
  // is none to split yet. Collective over all ranks; `color` is negative where this rank takes no
  // part.
  std::shared_ptr<DeviceCommunicator> split(int color, int key, const GroupOptions& options);
  void adopt(std::shared_ptr<DeviceCommunicator> communicator);

  // On which asynchronous calls run.
  c10::Stream stream(c10::Device device);

  // The communicator of all ranks, if it has been made.
  std::shared_ptr<DeviceCommunicator> made() const;
  std::vector<std::shared_ptr<DeviceCommunicator>> all() const;

 private:
  std::shared_ptr<DeviceCommunicator> make(const std::string& suffix, int rank, int size,
                                           c10::Device device);
  void require_device(c10::Device device) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const c10::intrusive_ptr<GroupOptions> options_;

  std::mutex making_;         // held while ranks meet
  mutable std::mutex mutex_;  // of all below, for moments
  std::optional<c10::Device> device_;
  std::shared_ptr<DeviceCommunicator> main_;
  bool connected_ = false;
  std::map<int, std::shared_ptr<DeviceCommunicator>> pairs_;  // by peer
  std::optional<c10::Stream> stream_;
};

}  // namespace accl::adapter
