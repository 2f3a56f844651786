// Joining: how ranks become a device communicator. They meet over the store, compare what each has,
// and only then let NCCL connect: what does not agree is an error on every rank, in a sentence,
// before NCCL could hang on it.
#pragma once

#include <memory>
#include <string>

#include "accl/device.h"
#include "communicator/bulletin.h"
#include "driver/driver.h"
#include "engine/cuda/kernel_engine.h"
#include "engine/nccl/engine.h"

namespace accl {

struct DeviceParts {
  int rank = 0;
  int size = 1;
  int nodes = 1;
  driver::Context context = nullptr;
  std::string id;  // of the meeting
  std::shared_ptr<Store> store;
  std::shared_ptr<const Rules> rules;
  std::unique_ptr<Bulletin> bulletin;
  std::unique_ptr<nccl::Engine> engine;
  std::unique_ptr<cuda::KernelEngine> kernels;  // null where there are none
  std::string why_no_kernels;
};

// Collective. Throws what DeviceCommunicator::create throws.
DeviceParts join_device(std::shared_ptr<Store> store, int rank, int size,
                        std::shared_ptr<const Rules> rules, const DeviceOptions& options);

// The ranks of one colour of a split; `engine` is the child that NCCL made.
DeviceParts join_split(const DeviceParts& parent, std::unique_ptr<nccl::Engine> engine,
                       const std::string& meeting_name, std::shared_ptr<const Rules> rules,
                       const DeviceOptions& options);

nccl::EngineOptions engine_options(const DeviceOptions& options,
                                   std::shared_ptr<const Rules> rules);

}  // namespace accl
