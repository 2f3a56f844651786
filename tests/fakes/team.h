// Team: the ranks of one fake communicator, and where their calls meet. Collectives are matched by
// number, messages by number and pair; the last to arrive moves the data for all. Thread-safe.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "engine/nccl/api.h"

namespace accl::fake {

enum class Function { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };

// One rank's part of a call.
struct Item {
  Function function = Function::kAllReduce;
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::size_t count = 0;
  nccl::Type type = nccl::Type::kInt8;
  nccl::Op op = nccl::kSum;
  bool scaled = false;       // premul_sum; op is sum
  std::byte factor[8] = {};  // one element
  int root = -1;             // or the peer of a message
};

// Where an item meets the others: `from` and `to` are -1 for collectives.
struct Place {
  int from = -1;
  int to = -1;
  std::uint64_t number = 0;
  auto operator<=>(const Place&) const = default;
};

struct PlacedItem {
  Place place;
  Item item;
};

class Team {
 public:
  Team(int size, std::uint64_t id);

  int size() const { return size_; }
  std::uint64_t id() const { return id_; }

  // Blocks until all ranks came; false where this rank was aborted or the ranks cannot go together
  // (*fault says why then; it is empty where it was aborted).
  bool join(int rank, const driver::Uuid& gpu, bool may_share, std::string* fault);

  // Blocks until all ranks came. The child is null for a colour below 0. False where aborted.
  bool split(int rank, std::uint64_t number, int color, int key, std::shared_ptr<Team>* child,
             int* child_rank);

  // Blocks until all items are done, or this rank was aborted.
  void run(int rank, const std::vector<PlacedItem>& items);

  // Ends joins and splits that wait for ranks now.
  void end_waiting();

  // Ends all that this rank waits for, now and later.
  void abort(int rank);

  static long mismatches();

 private:
  struct Slot {
    std::vector<const Item*> items;  // by rank; of messages: sender, receiver
    std::size_t arrived = 0;
    std::size_t left = 0;
    bool broken = false;
    bool done = false;
  };
  struct Split {
    struct Answer {
      int color;
      int key;
      int rank;
    };
    std::vector<Answer> answers;
    std::map<int, std::shared_ptr<Team>> children;
    std::map<int, int> ranks;  // in the child, by rank here
    bool done = false;
  };

  void arrive(int rank, const PlacedItem& placed);
  void leave(const Place& place);
  void finish(Split& split, std::uint64_t number) const;
  void find_shared_gpus();

  const int size_;
  const std::uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> came_;
  std::vector<bool> gone_;
  std::vector<driver::Uuid> gpus_;
  int joined_ = 0;
  int endings_ = 0;  // calls of end_waiting
  std::string fault_;
  std::map<std::uint64_t, Split> splits_;
  std::map<Place, Slot> slots_;
};

}  // namespace accl::fake
