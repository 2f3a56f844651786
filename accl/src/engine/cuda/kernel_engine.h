// KernelEngine: collectives by kernels of our own, between GPUs whose ranks can map each other's
// memory (CUDA IPC, one host). For small messages, where NCCL's launch and protocol cost more than
// the data does.
//
// Each rank owns one region of device memory with flags and staging slots, mapped by all peers. A
// kernel pushes its data into the peers' slots and waits for theirs. Flags carry an epoch that the
// kernel itself counts in device memory, so that nothing is reset between calls and a captured call
// can be replayed. Every wait is bounded: by the abort word, which the host sets, and by a
// deadline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accl/communicator.h"
#include "driver/driver.h"
#include "engine/cuda/kernel_parameters.h"

namespace accl::cuda {

// One call that the engine can do, in its own terms. A buffer with one block a rank is given block
// by block, so that it makes no difference to the peers whether this rank's blocks lie apart; any
// other buffer is the first entry. All is device memory.
struct KernelCall {
  Collective collective = Collective::kAllReduce;
  std::array<const void*, kMostRanks> inputs{};
  std::array<void*, kMostRanks> outputs{};
  std::size_t count = 0;  // elements, as Call counts them
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // of premul_sum
  int root = 0;
  bool two_shot = false;  // of all_reduce; else one-shot
};

class KernelEngine {
 public:
  // Before peers are connected: what this rank tells the others (any bytes), as text without line
  // breaks. Allocates the region. Throws SystemError where kernels cannot be had here (none built
  // in, too many ranks, memory that cannot be shared); the sentence is the reason to show.
  static std::unique_ptr<KernelEngine> open(int rank, int ranks, int device);

  // False (and *why) where this build holds no kernels.
  static bool built_in(std::string* why) noexcept;

  virtual ~KernelEngine() = default;
  virtual std::string address() const = 0;

  // Maps the peers' regions; addresses[r] is rank r's address(). Throws SystemError.
  virtual void connect(const std::vector<std::string>& addresses) = 0;

  // Whether there is a kernel for the call; false leaves it to NCCL.
  virtual bool takes(const KernelCall&) const noexcept = 0;

  // Puts the kernel on the stream; the device's context is current. Calls of one engine are ordered
  // by the caller, on the GPU too. Throws SystemError.
  virtual void launch(const KernelCall&, driver::Stream stream) = 0;

  // Makes every kernel that runs or comes end soon, with its output undefined. From any thread.
  virtual void abort() noexcept = 0;

  // How long a kernel waits for its peers before it gives up, as abort() makes it.
  virtual void set_deadline(std::chrono::milliseconds) noexcept = 0;

  // Whether a kernel gave up (abort or deadline).
  virtual bool gave_up() const noexcept = 0;
};

}  // namespace accl::cuda
