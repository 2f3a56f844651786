// Direct: one round in which every pair of ranks that has to exchange something does so.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

Schedule all_reduce_direct(const PlanRequest& r) {
  Round round;
  for (const int peer : peers_from(r.rank, r.ranks)) add_send(round, peer, input(0), r.block_bytes);
  add_reduce(round, peers_ascending(r.rank, r.ranks), input(0), output(0), r.block_bytes, true);
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule all_gather_direct(const PlanRequest& r) {
  const Blocks blocks(r);
  const Span own = blocks[r.rank];
  Round round;
  add_copy(round, input(0), output(own.offset), own.bytes);
  for (const int peer : peers_from(r.rank, r.ranks)) {
    add_send(round, peer, input(0), own.bytes);
    add_receive(round, peer, output(blocks[peer].offset), blocks[peer].bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule reduce_scatter_direct(const PlanRequest& r) {
  const Blocks blocks(r);
  const Span own = blocks[r.rank];
  Round round;
  for (const int peer : peers_from(r.rank, r.ranks)) {
    add_send(round, peer, input(blocks[peer].offset), blocks[peer].bytes);
  }
  add_reduce(round, peers_ascending(r.rank, r.ranks), input(own.offset), output(0), own.bytes,
             true);
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule broadcast_direct(const PlanRequest& r) {
  Round round;
  if (r.rank == r.root) {
    add_copy(round, input(0), output(0), r.block_bytes);
    for (const int peer : peers_from(r.rank, r.ranks))
      add_send(round, peer, input(0), r.block_bytes);
  } else {
    add_receive(round, r.root, output(0), r.block_bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule reduce_direct(const PlanRequest& r) {
  Round round;
  if (r.rank == r.root) {
    add_reduce(round, peers_ascending(r.rank, r.ranks), input(0), output(0), r.block_bytes, true);
  } else {
    add_send(round, r.root, input(0), r.block_bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule all_to_all_direct(const PlanRequest& r) {
  const Blocks to(r);
  const Blocks from(r, r.receive_blocks);
  Round round;
  add_copy(round, input(to[r.rank].offset), output(from[r.rank].offset), to[r.rank].bytes);
  for (const int peer : peers_from(r.rank, r.ranks)) {
    add_send(round, peer, input(to[peer].offset), to[peer].bytes);
    add_receive(round, peer, output(from[peer].offset), from[peer].bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule gather_direct(const PlanRequest& r) {
  const Blocks blocks(r);
  const Span own = blocks[r.rank];
  Round round;
  if (r.rank == r.root) {
    add_copy(round, input(0), output(own.offset), own.bytes);
    for (const int peer : peers_from(r.rank, r.ranks)) {
      add_receive(round, peer, output(blocks[peer].offset), blocks[peer].bytes);
    }
  } else {
    add_send(round, r.root, input(0), own.bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

Schedule scatter_direct(const PlanRequest& r) {
  const Blocks blocks(r);
  const Span own = blocks[r.rank];
  Round round;
  if (r.rank == r.root) {
    add_copy(round, input(own.offset), output(0), own.bytes);
    for (const int peer : peers_from(r.rank, r.ranks)) {
      add_send(round, peer, input(blocks[peer].offset), blocks[peer].bytes);
    }
  } else {
    add_receive(round, r.root, output(0), own.bytes);
  }
  std::vector<Round> rounds;
  add_round(rounds, std::move(round));
  return once(std::move(rounds), r.chunk_bytes);
}

}  // namespace accl::schedule
