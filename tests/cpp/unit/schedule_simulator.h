// Schedule simulator: runs the schedules of all ranks at once on symbols in place of numbers.
//
// A cell stands for one element. It knows which element of the input it is and which ranks are
// summed up in it, so that a wrong, missing or doubled contribution cannot pass. Channels are as
// narrow as the engine may find them: one message each, of which at most `window` elements are
// under way. Whatever is wrong fails the test: a deadlock, messages that do not match, a transfer
// outside of its buffer or across an element, a hazard, a written input, a wrong result, traffic
// that is not Schedule::traffic().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "accl/schedule.h"
#include "harness/test.h"

namespace accl::test {

struct Value {
  std::uint32_t element = 0;  // index in the input of each rank in `ranks`
  std::uint32_t ranks = 0;    // bit set of the contributors; 0: nobody wrote this cell
  bool complete = false;      // went through a reduction marked `last`
  bool operator==(const Value&) const = default;
};

inline std::uint32_t bit_of(int rank) { return std::uint32_t{1} << rank; }

// One call, as all ranks make it. Sizes are in elements.
struct Case {
  Collective collective = Collective::kAllReduce;
  std::string algorithm;
  int ranks = 1;
  int root = 0;
  std::size_t count = 0;
  std::size_t element_bytes = 1;
  std::size_t chunk_bytes = 0;
  bool in_place = false;
  // Empty: even. all_to_all: [from][to]; others: [0][rank].
  std::vector<std::vector<std::size_t>> counts;

  std::string name() const {
    std::string text = std::string(name_of(collective)) + "/" + algorithm;
    const auto add = [&](const char* what, std::size_t value) {
      text += std::string(" ") + what + " " + std::to_string(value);
    };
    add("ranks", static_cast<std::size_t>(ranks));
    add("root", static_cast<std::size_t>(root));
    add("count", count);
    add("element_bytes", element_bytes);
    add("chunk_bytes", chunk_bytes);
    for (const auto& row : counts) {
      text += " [";
      for (const std::size_t n : row) text += " " + std::to_string(n);
      text += " ]";
    }
    return text + (in_place ? " in place" : "");
  }

  // Elements of block `index` in the list of `row` (all_to_all: what rank `row` sends to rank
  // `index`).
  std::size_t block(int row, int index) const {
    if (counts.empty()) return count;
    return counts[is_all_to_all() ? static_cast<std::size_t>(row) : 0]
                 [static_cast<std::size_t>(index)];
  }
  // Elements in front of that block.
  std::size_t before(int row, int index) const {
    std::size_t sum = 0;
    for (int i = 0; i < index; ++i) sum += block(row, i);
    return sum;
  }
  bool is_all_to_all() const { return collective == Collective::kAllToAll; }

  PlanRequest request(int rank) const {
    PlanRequest r{collective,    rank,        ranks, root, count * element_bytes,
                  element_bytes, chunk_bytes, {},    {}};
    if (counts.empty()) return r;
    for (int i = 0; i < ranks; ++i) {
      r.blocks.push_back(block(rank, i) * element_bytes);
      if (is_all_to_all()) r.receive_blocks.push_back(block(i, rank) * element_bytes);
    }
    return r;
  }
};

// How the ranks are run. All ways must give the same result.
struct Pace {
  enum class Order : std::uint8_t { kAscending, kDescending, kRandom };
  Order order = Order::kAscending;
  std::size_t window = SIZE_MAX;  // elements that a channel holds
  std::size_t piece = SIZE_MAX;   // at most so many elements move at a time
  std::uint32_t seed = 0;
};

// What the buffers of a rank hold before, and must hold afterwards.
class Layout {
 public:
  Layout(const Case& c, int rank) : case_(c), rank_(rank) {}

  std::size_t input_count() const {
    switch (case_.collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
        return case_.count;
      case Collective::kBroadcast:
        return is_root() || case_.in_place ? case_.count : 0;
      case Collective::kAllGather:
      case Collective::kGather:
        return own();
      case Collective::kReduceScatter:
      case Collective::kAllToAll:
        return total();
      case Collective::kScatter:
        return is_root() ? total() : 0;
      case Collective::kBarrier:
      case Collective::kSend:
      case Collective::kRecv:
        return 0;
    }
    return 0;
  }

  std::size_t output_count() const {
    switch (case_.collective) {
      case Collective::kAllReduce:
      case Collective::kBroadcast:
        return case_.count;
      case Collective::kReduce:
        return is_root() ? case_.count : 0;
      case Collective::kAllGather:
        return total();
      case Collective::kGather:
        return is_root() ? total() : 0;
      case Collective::kReduceScatter:
      case Collective::kScatter:
        return own();
      case Collective::kAllToAll:
        return received_before(case_.ranks);
      case Collective::kBarrier:
      case Collective::kSend:
      case Collective::kRecv:
        return 0;
    }
    return 0;
  }

  // Where output begins, counted from where input begins, if the two share memory.
  std::ptrdiff_t shift_in_place() const {
    const auto at_own = static_cast<std::ptrdiff_t>(case_.before(0, rank_));
    switch (case_.collective) {
      case Collective::kAllGather:
      case Collective::kGather:
        return -at_own;
      case Collective::kReduceScatter:
      case Collective::kScatter:
        return at_own;
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kReduce:
      case Collective::kAllToAll:
      case Collective::kBarrier:
      case Collective::kSend:
      case Collective::kRecv:
        return 0;
    }
    return 0;
  }

  std::vector<Value> result() const {
    const std::uint32_t all = bit_of(case_.ranks) - 1;
    const bool reduced = case_.ranks > 1;
    switch (case_.collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
        return run(0, output_count(), {0, all, reduced});
      case Collective::kReduceScatter:
        return run(case_.before(0, rank_), own(), {0, all, reduced});
      case Collective::kBroadcast:
        return run(0, case_.count, {0, bit_of(case_.root), false});
      case Collective::kScatter:
        return run(case_.before(0, rank_), own(), {0, bit_of(case_.root), false});
      case Collective::kAllGather:
      case Collective::kGather:
        return output_count() == 0 ? std::vector<Value>{} : gathered();
      case Collective::kAllToAll:
        return exchanged();
      case Collective::kBarrier:
      case Collective::kSend:
      case Collective::kRecv:
        return {};
    }
    return {};
  }

 private:
  bool is_root() const { return rank_ == case_.root; }
  std::size_t own() const { return case_.block(0, rank_); }
  std::size_t total() const { return case_.before(rank_, case_.ranks); }
  std::size_t received_before(int rank) const {
    std::size_t sum = 0;
    for (int from = 0; from < rank; ++from) sum += case_.block(from, rank_);
    return sum;
  }
  static std::vector<Value> run(std::size_t first, std::size_t count, Value like) {
    std::vector<Value> values(count, like);
    for (Value& value : values) value.element = static_cast<std::uint32_t>(first++);
    return values;
  }
  std::vector<Value> gathered() const {
    std::vector<Value> values;
    for (int from = 0; from < case_.ranks; ++from) {
      const auto block = run(0, case_.block(0, from), {0, bit_of(from), false});
      values.insert(values.end(), block.begin(), block.end());
    }
    return values;
  }
  std::vector<Value> exchanged() const {
    std::vector<Value> values;
    for (int from = 0; from < case_.ranks; ++from) {
      const auto block =
          run(case_.before(from, rank_), case_.block(from, rank_), {0, bit_of(from), false});
      values.insert(values.end(), block.begin(), block.end());
    }
    return values;
  }

  const Case& case_;
  int rank_;
};

// The channel from one rank to another: at most one message at a time.
struct Channel {
  bool open = false;
  std::size_t total = 0;
  std::size_t taken = 0;
  std::uint32_t known = 0;    // bit set: from whom the sender had heard when it sent
  std::vector<Value> values;  // all that were put in; the first `taken` are gone

  void close() {
    open = false;
    taken = 0;
    values.clear();
  }
};

class SimulatedRank;

class Simulation {
 public:
  Simulation(const Case& c, const Pace& pace);
  void run();

  Channel& channel(int from, int to) {
    return channels_[static_cast<std::size_t>(from * case_.ranks + to)];
  }
  // How much of `wanted` to move now.
  std::size_t some(std::size_t wanted) {
    if (pace_.piece == SIZE_MAX || wanted == 0) return wanted;
    return std::min<std::size_t>(wanted, 1 + random_() % pace_.piece);
  }
  std::size_t window() const { return pace_.window; }
  const Case& what() const { return case_; }
  [[noreturn]] void fail(int rank, const std::string& why) const {
    FAIL(case_.name() + ": rank " + std::to_string(rank) + ": " + why);
  }

 private:
  bool pass(bool all);
  bool done() const;

  const Case& case_;
  const Pace& pace_;
  std::mt19937 random_;
  std::vector<Channel> channels_;
  std::vector<SimulatedRank> ranks_;
};

// One rank: executes its schedule round by round, as the engine does.
class SimulatedRank {
 public:
  SimulatedRank(Simulation& simulation, int rank)
      : simulation_(simulation),
        case_(simulation.what()),
        rank_(rank),
        layout_(case_, rank),
        schedule_(plan(case_.algorithm, case_.request(rank))),
        known_(bit_of(rank)) {
    lay_out();
    seek();
  }

  bool done() const { return loop_ == schedule_.loops.size(); }

  // Moves every transfer of the round as far as it goes; goes on to the next round if it is over.
  bool advance() {
    if (done()) return false;
    bool moved = false;
    bool over = true;
    for (Sending& s : sends_) {
      moved |= move(s);
      over &= s.started && s.sent == s.count;
    }
    for (Taking& t : takings_) {
      moved |= move(t);
      over &= t.over;
    }
    if (!over) return moved;
    if (++round_ == loop().rounds.size()) {
      round_ = 0;
      if (++repeat_ == loop().repeat) {
        repeat_ = 0;
        ++loop_;
      }
    }
    seek();
    return true;
  }

  void check_result() const {
    const auto right = layout_.result();
    for (std::size_t i = 0; i < right.size(); ++i) {
      const Value& value = cells_[base_[kOut] + i];
      if (!(value == right[i])) {
        fail("output element " + std::to_string(i) + " is " + show(value) + ", expected " +
             show(right[i]));
      }
    }
    for (std::size_t i = 0; i < size_[kIn]; ++i) {
      const std::size_t at = base_[kIn] + i;
      if (at >= base_[kOut] && at < base_[kOut] + size_[kOut]) continue;
      if (!(cells_[at] == Value{static_cast<std::uint32_t>(i), bit_of(rank_), false})) {
        fail("input element " + std::to_string(i) + " was written");
      }
    }
    if (case_.collective == Collective::kBarrier && known_ != bit_of(case_.ranks) - 1) {
      fail("leaves the barrier before it has heard of all");
    }
    if (!(traffic_ == schedule_.traffic())) fail("the traffic is not Schedule::traffic()");
    if (rounds_ != schedule_.rounds()) fail("the rounds are not Schedule::rounds()");
  }

 private:
  static constexpr std::size_t kIn = static_cast<std::size_t>(BufferKind::kInput);
  static constexpr std::size_t kOut = static_cast<std::size_t>(BufferKind::kOutput);
  static constexpr std::size_t kScratch = static_cast<std::size_t>(BufferKind::kScratch);

  struct Sending {
    int peer;
    std::size_t from;
    std::size_t count;
    std::size_t sent;
    bool started;
  };
  // A receive, or a reduce where `own` is a cell.
  struct Taking {
    std::vector<int> peers;
    std::size_t own;
    std::size_t to;
    std::size_t count;
    bool reduces;
    bool last;
    std::size_t taken;
    bool opened;
    bool over;
  };
  // The cells [begin, end) of a round's transfer.
  struct Range {
    std::size_t begin;
    std::size_t end;
    bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  };

  static std::string show(const Value& value) {
    return "(" + std::to_string(value.element) + " of ranks " + std::to_string(value.ranks) +
           (value.complete ? ", complete)" : ")");
  }
  [[noreturn]] void fail(const std::string& why) const { simulation_.fail(rank_, why); }
  void require(bool good, const char* why) const {
    if (!good) fail(why);
  }
  const Loop& loop() const { return schedule_.loops[loop_]; }

  void lay_out() {
    require(schedule_.scratch_bytes % case_.element_bytes == 0, "scratch splits an element");
    require(schedule_.piece_bytes != 0 && schedule_.piece_bytes % 64 == 0,
            "piece_bytes is no line");
    size_ = {layout_.input_count(), layout_.output_count(),
             schedule_.scratch_bytes / case_.element_bytes};
    base_[kIn] = 0;
    base_[kOut] = size_[kIn];
    if (case_.in_place && size_[kIn] != 0 && size_[kOut] != 0) {
      const std::ptrdiff_t shift = layout_.shift_in_place();
      base_[kIn] = shift < 0 ? static_cast<std::size_t>(-shift) : 0;
      base_[kOut] = shift < 0 ? 0 : static_cast<std::size_t>(shift);
    }
    base_[kScratch] = std::max(base_[kIn] + size_[kIn], base_[kOut] + size_[kOut]);
    cells_.resize(base_[kScratch] + size_[kScratch]);
    for (std::size_t i = 0; i < size_[kIn]; ++i) {
      cells_[base_[kIn] + i] = {static_cast<std::uint32_t>(i), bit_of(rank_), false};
    }
  }

  // Enters the round that is next; a loop of nothing is passed over.
  void seek() {
    while (!done() && (loop().rounds.empty() || loop().repeat == 0)) ++loop_;
    if (done()) return;
    ++rounds_;
    enter(loop().rounds[round_]);
  }

  Range resolve(const Place& place, std::size_t bytes) const {
    const auto kind = static_cast<std::size_t>(place.buffer);
    const std::array strides = {loop().input_stride, loop().output_stride, std::size_t{0}};
    const std::size_t offset = place.offset + repeat_ * strides[kind];
    const std::size_t e = case_.element_bytes;
    require(offset % e == 0 && bytes % e == 0, "a transfer splits an element");
    require(offset / e + bytes / e <= size_[kind], "a transfer leaves its buffer");
    const std::size_t begin = base_[kind] + offset / e;
    return {begin, begin + bytes / e};
  }

  Range to_write(const Place& place, std::size_t bytes) const {
    require(place.buffer != BufferKind::kInput, "the plan writes into the input");
    return resolve(place, bytes);
  }

  void enter(const Round& round) {
    for (const Copy& copy : round.copies) carry_out(copy);
    sends_.clear();
    takings_.clear();
    known_before_ = known_;
    std::uint32_t send_peers = 0;
    std::uint32_t take_peers = 0;
    for (const Send& s : round.sends) {
      check_peer(s.peer, s.bytes, send_peers);
      const Range from = resolve(s.from, s.bytes);
      sends_.push_back({s.peer, from.begin, from.end - from.begin, 0, false});
    }
    for (const Receive& r : round.receives) {
      check_peer(r.peer, r.bytes, take_peers);
      const Range to = to_write(r.to, r.bytes);
      takings_.push_back({{r.peer}, 0, to.begin, to.end - to.begin, false, false, 0, false, false});
    }
    for (const Reduce& r : round.reduces) {
      require(!r.peers.empty() && std::ranges::is_sorted(r.peers),
              "the peers of a reduce are not ascending");
      for (const int peer : r.peers) check_peer(peer, r.bytes, take_peers);
      const Range to = to_write(r.to, r.bytes);
      takings_.push_back({r.peers, resolve(r.own, r.bytes).begin, to.begin, to.end - to.begin, true,
                          r.last, 0, false, false});
    }
    check_hazards();
  }

  void check_peer(int peer, std::size_t bytes, std::uint32_t& seen) const {
    require(peer >= 0 && peer < case_.ranks && peer != rank_, "a peer is no other rank");
    require((seen & bit_of(peer)) == 0, "a peer appears twice in a round");
    require(bytes != 0 || case_.collective == Collective::kBarrier, "a message is empty");
    seen |= bit_of(peer);
  }

  // What a round writes may meet what it reads only where both start at the same place.
  void check_hazards() const {
    for (std::size_t i = 0; i < takings_.size(); ++i) {
      const Taking& t = takings_[i];
      const Range to{t.to, t.to + t.count};
      for (const Sending& s : sends_) {
        require(s.from == t.to || !to.overlaps({s.from, s.from + s.count}),
                "a write meets the data of a send");
      }
      for (std::size_t j = 0; j < takings_.size(); ++j) {
        const Taking& other = takings_[j];
        require(i == j || !to.overlaps({other.to, other.to + other.count}), "two writes meet");
        const bool same_place = i == j && t.to == other.own;
        require(!other.reduces || same_place || !to.overlaps({other.own, other.own + other.count}),
                "a write meets the own data of a reduce");
      }
    }
  }

  void carry_out(const Copy& copy) {
    const Range from = resolve(copy.from, copy.bytes);
    const Range to = to_write(copy.to, copy.bytes);
    if (from.begin == to.begin) return;
    require(!from.overlaps(to), "a copy overlaps itself");
    for (std::size_t i = 0; i < from.end - from.begin; ++i) {
      cells_[to.begin + i] = read(from.begin + i);
    }
  }

  const Value& read(std::size_t at) const {
    if (cells_[at].ranks == 0) fail("reads cell " + std::to_string(at) + ", which nobody wrote");
    return cells_[at];
  }

  bool move(Sending& s) {
    Channel& channel = simulation_.channel(rank_, s.peer);
    bool moved = false;
    if (!s.started) {
      if (channel.open) return false;
      channel.open = s.started = moved = true;
      channel.total = s.count;
      channel.known = known_before_;
      ++traffic_.messages_sent;
    }
    if (s.sent == s.count) return moved;
    const std::size_t room = simulation_.window() - (channel.values.size() - channel.taken);
    const std::size_t part = simulation_.some(std::min(room, s.count - s.sent));
    for (std::size_t i = 0; i < part; ++i) channel.values.push_back(read(s.from + s.sent + i));
    s.sent += part;
    traffic_.bytes_sent += part * case_.element_bytes;
    return moved || part != 0;
  }

  bool move(Taking& t) {
    if (t.over || !open(t)) return false;
    std::size_t part = writable(t) - t.taken;
    for (const int peer : t.peers) {
      const Channel& channel = simulation_.channel(peer, rank_);
      part = std::min(part, channel.values.size() - channel.taken);
    }
    part = simulation_.some(part);
    for (std::size_t i = 0; i < part; ++i) take(t, i);
    t.taken += part;
    for (const int peer : t.peers) simulation_.channel(peer, rank_).taken += part;
    const std::uint64_t bytes = part * case_.element_bytes * t.peers.size();
    traffic_.bytes_received += bytes;
    if (t.reduces) traffic_.bytes_reduced += bytes;
    if (t.taken == t.count) close(t);
    return part != 0 || t.over;
  }

  bool open(Taking& t) {
    for (const int peer : t.peers) {
      const Channel& channel = simulation_.channel(peer, rank_);
      if (!channel.open) return false;
      if (channel.total != t.count) {
        fail("expects " + std::to_string(t.count) + " elements of rank " + std::to_string(peer) +
             ", which sends " + std::to_string(channel.total));
      }
    }
    return t.opened = true;
  }

  void close(Taking& t) {
    for (const int peer : t.peers) {
      known_ |= simulation_.channel(peer, rank_).known;
      simulation_.channel(peer, rank_).close();
    }
    traffic_.messages_received += t.peers.size();
    t.over = true;
  }

  // Elements of a result that may be written: no more than sends have read at the same place.
  std::size_t writable(const Taking& t) const {
    std::size_t count = t.count;
    for (const Sending& s : sends_) {
      if (s.from == t.to && s.sent != s.count) count = std::min(count, s.sent);
    }
    return count;
  }

  void take(const Taking& t, std::size_t i) {
    const auto arrived = [&](int peer) -> const Value& {
      const Channel& channel = simulation_.channel(peer, rank_);
      return channel.values[channel.taken + i];
    };
    const std::size_t at = t.taken + i;
    if (!t.reduces) {
      cells_[t.to + at] = arrived(t.peers.front());
      return;
    }
    Value sum = read(t.own + at);
    require(!sum.complete, "reduces a complete result");
    for (const int peer : t.peers) {
      const Value& value = arrived(peer);
      require(value.element == sum.element, "reduces elements that do not belong together");
      require((value.ranks & sum.ranks) == 0, "adds a contribution twice");
      require(!value.complete, "reduces a complete result");
      sum.ranks |= value.ranks;
    }
    sum.complete = t.last;
    require(!t.last || sum.ranks == bit_of(case_.ranks) - 1, "calls an incomplete result complete");
    cells_[t.to + at] = sum;
  }

  Simulation& simulation_;
  const Case& case_;
  int rank_;
  Layout layout_;
  Schedule schedule_;
  std::vector<Value> cells_;  // input, output (which may share cells) and scratch
  std::array<std::size_t, 3> base_{};
  std::array<std::size_t, 3> size_{};
  // From whom this rank has heard, by whatever way: of all, when it leaves a barrier.
  std::uint32_t known_;
  std::uint32_t known_before_ = 0;  // the round
  Traffic traffic_;
  std::uint64_t rounds_ = 0;
  std::size_t loop_ = 0;
  std::size_t repeat_ = 0;
  std::size_t round_ = 0;
  std::vector<Sending> sends_;
  std::vector<Taking> takings_;
};

inline Simulation::Simulation(const Case& c, const Pace& pace)
    : case_(c),
      pace_(pace),
      random_(pace.seed),
      channels_(static_cast<std::size_t>(c.ranks) * static_cast<std::size_t>(c.ranks)) {
  for (int rank = 0; rank < c.ranks; ++rank) ranks_.emplace_back(*this, rank);
}

// One pass over the ranks; `all`: leaves none out.
inline bool Simulation::pass(bool all) {
  bool moved = false;
  const std::size_t n = ranks_.size();
  for (std::size_t i = 0; i < n; ++i) {
    switch (pace_.order) {
      case Pace::Order::kAscending:
        moved |= ranks_[i].advance();
        break;
      case Pace::Order::kDescending:
        moved |= ranks_[n - 1 - i].advance();
        break;
      case Pace::Order::kRandom:
        moved |= ranks_[all ? i : random_() % n].advance();
        break;
    }
  }
  return moved;
}

inline bool Simulation::done() const {
  return std::ranges::all_of(ranks_, [](const SimulatedRank& rank) { return rank.done(); });
}

inline void Simulation::run() {
  while (!done()) {
    if (pass(false) || pass(true)) continue;
    std::string waiting;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i].done()) waiting += " " + std::to_string(i);
    }
    FAIL(case_.name() + ": deadlock of ranks" + waiting);
  }
  for (const Channel& channel : channels_) {
    if (channel.open) FAIL(case_.name() + ": a message was sent that nobody receives");
  }
  for (const SimulatedRank& rank : ranks_) rank.check_result();
}

inline void simulate(const Case& c, const Pace& pace) { Simulation(c, pace).run(); }

}  // namespace accl::test
