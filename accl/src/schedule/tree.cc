// Tree: a binomial tree below the root. Logarithmic depth: each rank that has the data passes it
// on.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

namespace {

// A rank's place in the tree, with the root at position 0: the parent of position p is p without
// its lowest set bit, its children are p + 1, p + 2, p + 4, ... below that bit.
struct Relations {
  int parent = -1;
  std::vector<int> children;
};

Relations relations(const PlanRequest& r) {
  const int position = wrap(r.rank - r.root, r.ranks);
  const auto rank_at = [&](int p) { return wrap(p + r.root, r.ranks); };
  Relations result;
  const int lowest = position & -position;
  if (position != 0) result.parent = rank_at(position - lowest);
  for (int bit = 1; (position == 0 || bit < lowest) && position + bit < r.ranks; bit *= 2) {
    result.children.push_back(rank_at(position + bit));
  }
  return result;
}

}  // namespace

Schedule broadcast_tree(const PlanRequest& r) {
  const Relations tree = relations(r);
  const bool is_root = tree.parent < 0;
  return in_segments(r.block_bytes, r.chunk_bytes, r.chunk_bytes, [&](Span piece) {
    Round take;
    Round pass;
    if (is_root) {
      add_copy(pass, input(piece.offset), output(piece.offset), piece.bytes);
    } else {
      add_receive(take, tree.parent, output(piece.offset), piece.bytes);
    }
    // The farthest child first: it has the most below it.
    for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
      add_send(pass, *child, is_root ? input(piece.offset) : output(piece.offset), piece.bytes);
    }
    std::vector<Round> rounds;
    add_round(rounds, std::move(take));
    add_round(rounds, std::move(pass));
    return rounds;
  });
}

Schedule reduce_tree(const PlanRequest& r) {
  const Relations tree = relations(r);
  const bool is_root = tree.parent < 0;
  std::vector<int> children = tree.children;
  std::ranges::sort(children);
  Schedule schedule = in_segments(r.block_bytes, r.chunk_bytes, r.chunk_bytes, [&](Span piece) {
    const Place sum = is_root ? output(piece.offset) : scratch(0);
    std::vector<Round> rounds;
    if (!children.empty()) {
      Round reduce;
      add_reduce(reduce, children, input(piece.offset), sum, piece.bytes, is_root);
      add_round(rounds, std::move(reduce));
    }
    if (!is_root) {
      Round pass;
      add_send(pass, tree.parent, children.empty() ? input(piece.offset) : sum, piece.bytes);
      add_round(rounds, std::move(pass));
    }
    return rounds;
  });
  if (!is_root && !children.empty()) {
    schedule.scratch_bytes = std::min(r.chunk_bytes, r.block_bytes);
  }
  return schedule;
}

}  // namespace accl::schedule
