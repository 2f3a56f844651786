// Executor: runs one schedule over a transport, without blocking.
//
// advance() moves every transfer of the current round as far as it goes now, and goes on to the
// next round when this one is done. It counts what it really moved; tests hold the counts against
// docs/algorithms.md. One executor runs one call at a time and is reused, so that its small vectors
// keep their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accl/communicator.h"
#include "accl/schedule.h"
#include "transport/transport.h"

namespace accl::engine {

// What the executor needs to know of a call. Memory is the caller's.
struct Task {
  std::shared_ptr<const Schedule> schedule;
  Buffer input;
  Buffer output;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;  // as reduce::combine takes it
  double divisor = 1;            // of complete results; whole for integers
  std::uint64_t digest = 0;
  std::size_t inline_limit = 0;  // messages of up to so many bytes go inline
};

class Executor {
 public:
  Executor(transport::Transport& transport, int rank) : transport_(transport), rank_(rank) {}

  void begin(Task task);
  bool busy() const noexcept { return busy_; }

  // One pass. Returns whether anything moved. Throws MismatchError where a peer's message is not
  // the expected one; `busy` stays true then, and the communicator is to be ended.
  bool advance();

  const Traffic& traffic() const noexcept { return traffic_; }  // of the current or last task

  // The peers that the current round still waits for.
  std::vector<int> waiting_for();

 private:
  struct SendState {
    int peer;
    const std::byte* from;
    std::size_t bytes;
    std::size_t sent;
    bool started;
  };
  struct ReceiveState {
    int peer;
    std::byte* to;
    std::size_t bytes;
    std::size_t received;
    bool opened;  // its header was checked
    bool done;
  };
  struct ReduceState {
    const Reduce* plan;
    const std::byte* own;
    std::byte* to;
    std::size_t reduced;
    bool opened;
    bool done;
  };

  void enter_round();
  bool next_round();
  bool move_sends();
  bool move_receives();
  bool move_reduces();
  bool move_send(SendState& state);
  bool move_receive(ReceiveState& state);
  bool move_reduce(ReduceState& state);
  bool open(int peer, std::size_t bytes);
  bool has_data_of(int peer);
  std::size_t writable(const std::byte* to, std::size_t wanted) const;
  std::byte* resolve(const Place& place, std::size_t bytes) const;
  const Round& round() const;

  transport::Transport& transport_;
  int rank_;
  Task task_;
  Traffic traffic_;
  bool busy_ = false;
  std::size_t loop_ = 0;
  std::size_t repeat_ = 0;
  std::size_t round_ = 0;
  std::size_t piece_bytes_ = 0;
  std::size_t element_bytes_ = 1;
  std::vector<std::byte> scratch_;
  std::vector<SendState> sends_;
  std::vector<ReceiveState> receives_;
  std::vector<ReduceState> reduces_;
  std::vector<const void*> operands_;
};

}  // namespace accl::engine
