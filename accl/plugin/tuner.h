// Tuner: one communicator of NCCL's, as the plugin knows it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/board.h"
#include "plugin/control.h"
#include "plugin/nccl_tuner_abi.h"
#include "plugin/source.h"
#include "plugin/voice.h"

namespace accl::plugin {

class Tuner {
 public:
  struct Shape {
    int version = 6;  // of NCCL's interface
    std::optional<std::uint64_t> communicator;
    std::size_t ranks = 1;
    std::size_t nodes = 1;
  };

  Tuner(const Shape&, NcclLogger, SourcePtr);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // Whether the communicator may be made; where the ranks' rules are seen to differ it may not, and
  // why has been said. Call once. Never waits for a peer.
  bool agree();

  struct Question {
    int function;
    std::size_t bytes;
    int pipe_ops;
    CostTable table;
    int registered;
    int* channels;
  };
  void answer(const Question&);
  void answer_chunk(int function, int algorithm, int protocol, std::size_t* chunk);

 private:
  struct Found {
    Decision decision;
    const Rule* rule = nullptr;  // nullptr: forced
    std::size_t row = 0;
  };

  Shape shape_;
  Voice voice_;
  SourcePtr source_;
  std::unique_ptr<Board> board_;
  std::atomic<bool> told_of_difference_ = false;
  std::vector<std::atomic<bool>> told_of_row_;  // that NCCL ignores what the row wants
  // Of the last question about each collective, packed: what getChunkSize is to follow.
  std::array<std::atomic<std::uint64_t>, kNcclFunctions> chunks_{};

  bool digest_as_wanted();
  bool host_agrees();
  bool peers_differ();
  std::string difference() const;
  std::optional<Found> find(const Question&) const;
  int apply(const Question&, const Found&, accl_tuner_last& record);
  void tell_ignored(const Question&, const Found&);
};

}  // namespace accl::plugin
