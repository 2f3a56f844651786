// Engine: one NCCL communicator, and the calls of ours as calls of NCCL's.
//
// NCCL's collectives take one contiguous buffer. A call whose blocks lie apart or differ in size is
// a group of NCCL's calls, one a block: broadcasts for all_gather, reductions for reduce_scatter,
// sends and receives for the rest, as all_to_all, gather and scatter are in any case. Not
// thread-safe but for abort() and async_error(): the communicator's lock serves.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "accl/communicator.h"
#include "accl/rules.h"
#include "driver/driver.h"
#include "engine/nccl/api.h"

namespace accl::nccl {

struct EngineOptions {
  std::string name;
  bool blocking = true;
  int min_channels = 0;
  int max_channels = 0;
  int cga_cluster_size = -1;
  int traffic_class = -1;
  std::string network;
  bool split_share = false;
  Milliseconds timeout{0};
  std::shared_ptr<const Rules> rules;  // what the tuner plugin is given for this communicator
};

std::string make_unique_id();  // of rank 0, 128 bytes for the others; throws SystemError

// Throws InvalidArgument with a sentence for options that NCCL would refuse or misread.
void validate(const EngineOptions&);

class Engine {
 public:
  // Collective. Blocks until NCCL has connected (unless options.blocking is false), at most until
  // the timeout: then it throws TimeoutError and leaves the attempt to a thread of its own. Throws
  // SystemError with NCCL's own words.
  static std::unique_ptr<Engine> join(const std::string& unique_id, int rank, int ranks,
                                      driver::Context context, const EngineOptions&);

  // Collective over all ranks of this one; null where color is negative.
  std::unique_ptr<Engine> split(int color, int key, const EngineOptions&);

  ~Engine();  // aborts unless shut down
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Puts a valid call on the stream. `scratch` is device memory of 8 bytes or more, for barriers.
  // Throws InvalidArgument before anything is enqueued where NCCL cannot do it, SystemError later.
  void enqueue(const Call&, driver::Stream, void* scratch);
  void enqueue_group(const std::vector<Call>&, driver::Stream, void* scratch);

  bool ready();
  std::string async_error() noexcept;  // NCCL's words; empty while healthy

  // Ends kernels that run and calls that come. From any thread; does not wait for more than a
  // moment: NCCL may take its time, and then goes on in a thread of its own.
  void abort() noexcept;

  // Frees a healthy communicator whose work is done. Peers need not do it at the same time.
  void close() noexcept;

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  std::size_t calls() const noexcept { return calls_; }  // handed to NCCL so far

 private:
  struct Handle;  // shared with threads that may outlive the engine
  Engine(std::shared_ptr<Handle> handle, int rank, int ranks, driver::Context context,
         Milliseconds timeout);

  void check(Result result, const char* what);
  void wait_until_ready();
  void put(const Call&, driver::Stream, void* scratch);
  void put_reduction(const Call&, driver::Stream);
  void put_all_gather(const Call&, driver::Stream);
  void put_all_to_all(const Call&, driver::Stream);
  void put_gather(const Call&, driver::Stream);
  void put_scatter(const Call&, driver::Stream);

  const std::shared_ptr<Handle> handle_;
  const int rank_;
  const int ranks_;
  const driver::Context context_;
  const Milliseconds timeout_;
  bool ready_ = false;
  std::size_t calls_ = 0;
};

}  // namespace accl::nccl
