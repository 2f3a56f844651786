#include "team.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <tuple>

#include "elements.h"

namespace accl::fake {

namespace {

std::atomic<long> mismatch_count{0};

bool is_message(const Place& place) { return place.from >= 0; }

bool agree(const Place& place, const std::vector<const Item*>& items) {
  const Item& first = *items[0];
  return std::all_of(items.begin(), items.end(), [&](const Item* item) {
    if (is_message(place))
      return item->count * bytes_of(item->type) == first.count * bytes_of(first.type);
    return item->function == first.function && item->count == first.count &&
           item->type == first.type && item->op == first.op && item->scaled == first.scaled &&
           item->root == first.root;
  });
}

void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

std::vector<std::byte> reduced(const std::vector<const Item*>& items, std::size_t count) {
  const Item& first = *items[0];
  std::vector<Operand> operands;
  for (const Item* item : items)
    operands.push_back({item->send, item->scaled ? item->factor : nullptr});
  std::vector<std::byte> result(count * bytes_of(first.type));
  reduce_elements(first.type, first.op, operands, count, result.data());
  return result;
}

// Everything is read before anything is written: buffers may be in place.
void execute(const std::vector<const Item*>& items) {
  const Item& first = *items[0];
  const std::size_t bytes = first.count * bytes_of(first.type);
  switch (first.function) {
    case Function::kAllReduce: {
      const auto result = reduced(items, first.count);
      for (const Item* item : items) move_bytes(item->receive, result.data(), bytes);
      break;
    }
    case Function::kReduce: {
      const auto result = reduced(items, first.count);
      move_bytes(items[static_cast<std::size_t>(first.root)]->receive, result.data(), bytes);
      break;
    }
    case Function::kReduceScatter: {
      const auto result = reduced(items, first.count * items.size());
      for (std::size_t r = 0; r < items.size(); ++r)
        move_bytes(items[r]->receive, result.data() + r * bytes, bytes);
      break;
    }
    case Function::kBroadcast: {
      const std::byte* source = items[static_cast<std::size_t>(first.root)]->send;
      const std::vector<std::byte> data(source, source + bytes);
      for (const Item* item : items) move_bytes(item->receive, data.data(), bytes);
      break;
    }
    case Function::kAllGather: {
      std::vector<std::byte> data;
      for (const Item* item : items) data.insert(data.end(), item->send, item->send + bytes);
      for (const Item* item : items) move_bytes(item->receive, data.data(), data.size());
      break;
    }
    case Function::kSend:
    case Function::kRecv:
      move_bytes(items[1]->receive, first.send, bytes);
      break;
  }
}

}  // namespace

Team::Team(int size, std::uint64_t id)
    : size_(size),
      id_(id),
      came_(static_cast<std::size_t>(size)),
      gone_(static_cast<std::size_t>(size)),
      gpus_(static_cast<std::size_t>(size)) {}

long Team::mismatches() { return mismatch_count.load(); }

void Team::find_shared_gpus() {
  for (std::size_t a = 0; a < gpus_.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus_.size(); ++b) {
      if (std::memcmp(&gpus_[a], &gpus_[b], sizeof gpus_[a]) != 0) continue;
      fault_ =
          "Duplicate GPU detected : rank " + std::to_string(a) + " and rank " + std::to_string(b);
    }
  }
}

bool Team::join(int rank, const driver::Uuid& gpu, bool may_share, std::string* fault) {
  const auto index = static_cast<std::size_t>(rank);
  std::unique_lock lock(mutex_);
  if (came_[index]) {
    *fault = "rank " + std::to_string(rank) + " comes a second time";
    return false;
  }
  came_[index] = true;
  gpus_[index] = gpu;
  if (++joined_ == size_ && !may_share) find_shared_gpus();
  changed_.notify_all();
  const int endings = endings_;
  changed_.wait(lock, [&] { return joined_ == size_ || gone_[index] || endings_ != endings; });
  if (joined_ != size_ && !gone_[index]) fault_ = "the other ranks did not come";
  *fault = gone_[index] ? std::string{} : fault_;
  return !gone_[index] && fault_.empty();
}

void Team::finish(Split& split, std::uint64_t number) const {
  auto& answers = split.answers;
  std::sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) {
    return std::tie(a.color, a.key, a.rank) < std::tie(b.color, b.key, b.rank);
  });
  for (const auto& answer : answers) {
    if (answer.color < 0 || split.children.contains(answer.color)) continue;
    const auto same = [&](const auto& other) { return other.color == answer.color; };
    const auto members = std::count_if(answers.begin(), answers.end(), same);
    const std::uint64_t id =
        id_ * 1000003 + number * 1009 + static_cast<std::uint64_t>(answer.color) + 1;
    split.children[answer.color] = std::make_shared<Team>(static_cast<int>(members), id);
  }
  std::map<int, int> next;
  for (const auto& answer : answers) split.ranks[answer.rank] = next[answer.color]++;
  split.done = true;
}

bool Team::split(int rank, std::uint64_t number, int color, int key, std::shared_ptr<Team>* child,
                 int* child_rank) {
  std::unique_lock lock(mutex_);
  Split& split = splits_[number];
  split.answers.push_back({color, key, rank});
  if (split.answers.size() == static_cast<std::size_t>(size_)) finish(split, number);
  changed_.notify_all();
  const int endings = endings_;
  changed_.wait(lock, [&] {
    return split.done || gone_[static_cast<std::size_t>(rank)] || endings_ != endings;
  });
  if (!split.done) return false;
  if (color >= 0) *child = split.children.at(color);
  *child_rank = split.ranks.at(rank);
  return true;
}

void Team::arrive(int rank, const PlacedItem& placed) {
  const Place& place = placed.place;
  Slot& slot = slots_[place];
  if (slot.items.empty())
    slot.items.resize(is_message(place) ? 2 : static_cast<std::size_t>(size_));
  const bool receives = placed.item.function == Function::kRecv;
  slot.items[is_message(place) ? (receives ? 1U : 0U) : static_cast<std::size_t>(rank)] =
      &placed.item;
  if (++slot.arrived != slot.items.size() || slot.broken) return;
  if (agree(place, slot.items)) {
    execute(slot.items);
    slot.done = true;
  } else {
    ++mismatch_count;
    slot.broken = true;
  }
}

// Who leaves what is not done takes its memory with it: the rest can never be done.
void Team::leave(const Place& place) {
  Slot& slot = slots_.at(place);
  if (!slot.done) slot.broken = true;
  if (++slot.left == slot.items.size()) slots_.erase(place);
}

void Team::run(int rank, const std::vector<PlacedItem>& items) {
  std::unique_lock lock(mutex_);
  const auto gone = [&] { return gone_[static_cast<std::size_t>(rank)]; };
  if (gone()) return;
  for (const PlacedItem& placed : items) arrive(rank, placed);
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return gone() || std::all_of(items.begin(), items.end(),
                                 [&](const PlacedItem& p) { return slots_.at(p.place).done; });
  });
  for (const PlacedItem& placed : items) leave(placed.place);
}

void Team::end_waiting() {
  const std::scoped_lock lock(mutex_);
  ++endings_;
  changed_.notify_all();
}

void Team::abort(int rank) {
  const std::scoped_lock lock(mutex_);
  gone_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

}  // namespace accl::fake
