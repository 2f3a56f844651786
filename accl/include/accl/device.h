// DeviceCommunicator: the ranks and calls of a Communicator, for memory of GPUs, ordered by
// streams.
//
// A call is put on a stream that the caller gives and runs there, after what is on the stream
// already and before what follows; nothing waits on the host. NCCL carries it out, steered by the
// rules, or a kernel of our own where a rule with `engine` cuda holds and all ranks can map each
// other's memory. A watchdog thread of the process sees calls end, notices NCCL's asynchronous
// errors and deadlines, and asks the other ranks what they did last, so that a timeout names who is
// missing. NCCL and the CUDA driver are loaded when the first DeviceCommunicator is made; this
// header names neither. Thread-safe; calls must be made in the same order on all ranks. Must not be
// used in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "accl/communicator.h"

namespace accl {

// A CUstream or cudaStream_t of the communicator's device; null is the legacy default stream.
using DeviceStream = void*;

// What happens to the process when a communicator ends with an error of its own (a timeout, a lost
// peer, an asynchronous error of NCCL). The streams' later work runs on data that never arrived.
enum class OnFault : std::uint8_t {
  kRaise,  // NCCL's kernels are told to end; every later call and wait of the communicator throws
  kExit,   // the same, and then the process is ended (SIGABRT), lest wrong numbers be used
};

struct DeviceOptions : CommunicatorOptions {
  int device = 0;             // CUDA ordinal in this process
  bool blocking = true;       // false: create() returns while NCCL still connects; ready() tells
  int min_channels = 0;       // NCCL's minCTAs, 1 to 64; 0: NCCL's own choice
  int max_channels = 0;       // NCCL's maxCTAs, 1 to 64; 0: NCCL's own choice
  int cga_cluster_size = -1;  // 0 to 8; -1: NCCL's own choice
  int traffic_class = -1;     // of the network; -1: NCCL's own choice
  std::string network;        // NCCL's netName: "Socket", "IB", ...; empty: NCCL's own choice
  bool split_share = false;   // children of split() share the parent's resources
  bool kernels = true;  // own kernels where the rules ask for them and the ranks can have them
  OnFault on_fault = OnFault::kRaise;
};

// One enqueued call, or a group of them. Shared; may be dropped.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;

  // Asks the GPU; false for a call that is being captured into a graph.
  virtual bool completed() = 0;
  virtual std::exception_ptr error() = 0;  // null unless it ended with an error

  // Blocks the host until the GPU is done; throws the error. False where `timeout` passed first.
  virtual bool wait(Milliseconds timeout = Milliseconds::max()) = 0;

  // What is put on `stream` from now on runs after this work. Does not block the host. Throws the
  // error that ended the communicator.
  virtual void order(DeviceStream stream) = 0;

  virtual std::uint64_t sequence() const noexcept = 0;  // from 1, of the communicator
  virtual WorkReport report() const = 0;                // `algorithm` is empty where NCCL chose
  virtual Engine engine() const noexcept = 0;           // kNccl or kCuda
};

struct DeviceStatistics {
  std::uint64_t enqueued = 0;   // calls; those of a group each
  std::uint64_t completed = 0;  // as far as the watchdog or a caller has looked
  std::uint64_t failed = 0;
  std::uint64_t captured = 0;         // of `enqueued`: into graphs
  std::uint64_t nccl_calls = 0;       // collectives, sends and receives that were handed to NCCL
  std::uint64_t kernel_launches = 0;  // of our own kernels
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;  // shuts down; never throws

  // Collective over all ranks, which meet through the store under options.name; the store stays in
  // use by the watchdog. Throws InvalidArgument (also where two ranks have the same GPU, and NCCL
  // would refuse that), MismatchError, TimeoutError, StoreError, SystemError (no driver, no NCCL,
  // or one that cannot be used; the sentence says what was tried).
  static std::shared_ptr<DeviceCommunicator> create(std::shared_ptr<Store> store, int rank,
                                                    int size, const DeviceOptions& options = {});

  // Whether create() would find what it needs here: a driver, a device, NCCL. Else why not.
  static bool available(std::string* why = nullptr) noexcept;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual int nodes() const noexcept = 0;
  virtual int device() const noexcept = 0;
  virtual const std::string& name() const noexcept = 0;
  virtual Milliseconds timeout() const noexcept = 0;
  virtual void set_timeout(Milliseconds) = 0;
  virtual std::shared_ptr<const Rules> rules() const = 0;
  virtual int nccl_version() const noexcept = 0;        // 22809 is 2.28.9
  virtual std::string kernels_unavailable() const = 0;  // why not; empty where they are there
  virtual bool ready() = 0;                             // see DeviceOptions::blocking

  // Puts the call on the stream. Buffers are memory of the device; see Call. `background` is
  // ignored; a tag must be 0 or is ignored by NCCL, which has none: messages of a pair match in
  // order. Throws InvalidArgument for a bad call or one that NCCL cannot do (a 16-bit integer sum,
  // say), and the error that ended the communicator.
  virtual std::shared_ptr<DeviceWork> enqueue(const Call&, DeviceStream) = 0;

  // All at once, as NCCL groups do: order among them does not matter, sends and receives may cross.
  virtual std::shared_ptr<DeviceWork> enqueue_group(const std::vector<Call>&, DeviceStream) = 0;

  // What is put on `stream` from now on runs after what is on `after` now. Does not block the host.
  virtual void follow(DeviceStream stream, DeviceStream after) = 0;

  // What a call would use: the engine, and the choice of the first rule that holds.
  virtual std::pair<Engine, Choice> choice_for(const Call&) const = 0;

  // A communicator of the ranks that give the same colour, ordered by `key`, then by rank:
  // collective over all ranks of this one, and on its device. Null where `color` is negative: that
  // rank takes no part.
  virtual std::shared_ptr<DeviceCommunicator> split(int color, int key,
                                                    const DeviceOptions& options) = 0;

  // Ends every pending and later call, here and on all peers. Idempotent, from any thread; does not
  // wait for peers, nor for other communicators' aborts.
  virtual void abort(const std::string& reason) = 0;

  // The error that ended the communicator; null while it is healthy.
  virtual std::exception_ptr error() const = 0;

  // Waits for enqueued calls (up to the timeout), then leaves. Idempotent. Peers need not do it at
  // the same time.
  virtual void shutdown() = 0;

  virtual DeviceStatistics statistics() const = 0;
  virtual std::string trace_json() const = 0;
};

}  // namespace accl
