// Ring: each rank sends to the next one and receives from the one before. Bandwidth-optimal,
// latency grows with the number of ranks. Partial sums travel, so 16-bit sums are rounded at each
// hop.
#include "schedule/parts.h"
#include "schedule/planners.h"

namespace accl::schedule {

// Part p is reduced along the ranks p, p+1, ..., p-1 (where it becomes complete), then goes around
// once more.
Schedule all_reduce_ring(const PlanRequest& r) {
  const int n = r.ranks;
  const int next = wrap(r.rank + 1, n);
  const int before = wrap(r.rank - 1, n);
  const auto rounds = [&](Span segment) {
    const auto part = [&](int index) {
      return part_of(segment, n, wrap(index, n), r.element_bytes);
    };
    std::vector<Round> all;
    for (int step = 0; step < n - 1; ++step) {
      const Span out = part(r.rank - step);
      const Span in = part(r.rank - step - 1);
      Round round;
      add_send(round, next, step == 0 ? input(out.offset) : output(out.offset), out.bytes);
      add_reduce(round, {before}, input(in.offset), output(in.offset), in.bytes, step == n - 2);
      add_round(all, std::move(round));
    }
    for (int step = 0; step < n - 1; ++step) {
      const Span out = part(r.rank + 1 - step);
      const Span in = part(r.rank - step);
      Round round;
      add_send(round, next, output(out.offset), out.bytes);
      add_receive(round, before, output(in.offset), in.bytes);
      add_round(all, std::move(round));
    }
    return all;
  };
  return in_segments(r.block_bytes, static_cast<std::size_t>(n) * r.chunk_bytes, r.chunk_bytes,
                     rounds);
}

Schedule all_gather_ring(const PlanRequest& r) {
  const int n = r.ranks;
  const auto rounds = [&](Span piece) {
    const auto at = [&](int block) {
      return static_cast<std::size_t>(wrap(block, n)) * r.block_bytes + piece.offset;
    };
    std::vector<Round> all;
    for (int step = 0; step < n - 1; ++step) {
      Round round;
      if (step == 0) add_copy(round, input(piece.offset), output(at(r.rank)), piece.bytes);
      add_send(round, wrap(r.rank + 1, n),
               step == 0 ? input(piece.offset) : output(at(r.rank - step)), piece.bytes);
      add_receive(round, wrap(r.rank - 1, n), output(at(r.rank - step - 1)), piece.bytes);
      add_round(all, std::move(round));
    }
    return all;
  };
  return in_segments(r.block_bytes, r.chunk_bytes, r.chunk_bytes, rounds);
}

// Block b is reduced along b+1, b+2, ..., b. The partial sums of other ranks' blocks stay in
// scratch: while one is sent, the next one is made, so there are two.
Schedule reduce_scatter_ring(const PlanRequest& r) {
  const int n = r.ranks;
  const std::size_t buffer = std::min(r.chunk_bytes, r.block_bytes);
  const std::size_t second = (buffer + kLine - 1) / kLine * kLine;
  const auto rounds = [&](Span piece) {
    const auto at = [&](int block) {
      return input(static_cast<std::size_t>(wrap(block, n)) * r.block_bytes + piece.offset);
    };
    const auto partial = [&](int step) { return scratch(step % 2 == 0 ? 0 : second); };
    std::vector<Round> all;
    for (int step = 0; step < n - 1; ++step) {
      const bool last = step == n - 2;
      Round round;
      add_send(round, wrap(r.rank + 1, n), step == 0 ? at(r.rank - 1) : partial(step - 1),
               piece.bytes);
      add_reduce(round, {wrap(r.rank - 1, n)}, at(r.rank - step - 2),
                 last ? output(piece.offset) : partial(step), piece.bytes, last);
      add_round(all, std::move(round));
    }
    return all;
  };
  Schedule schedule = in_segments(r.block_bytes, r.chunk_bytes, r.chunk_bytes, rounds);
  if (n > 2) schedule.scratch_bytes = 2 * second;
  return schedule;
}

// A pipeline: in one round a rank receives piece k and passes on piece k - 1.
Schedule broadcast_ring(const PlanRequest& r) {
  const int n = r.ranks;
  const int position = wrap(r.rank - r.root, n);
  const int next = wrap(r.rank + 1, n);
  const int before = wrap(r.rank - 1, n);
  const std::size_t chunk = r.chunk_bytes;
  const std::size_t pieces = (r.block_bytes + chunk - 1) / chunk;
  if (pieces == 0) return once({}, chunk);
  const std::size_t tail = r.block_bytes - (pieces - 1) * chunk;
  const bool sends = position != n - 1;
  if (position == 0) {
    Schedule schedule = in_segments(r.block_bytes, chunk, chunk, [&](Span piece) {
      Round round;
      add_copy(round, input(piece.offset), output(piece.offset), piece.bytes);
      add_send(round, next, input(piece.offset), piece.bytes);
      return std::vector<Round>{std::move(round)};
    });
    return schedule;
  }
  Schedule schedule;
  schedule.piece_bytes = chunk;
  const auto add_loop = [&](Round round, std::size_t repeat) {
    if (!is_empty(round) && repeat != 0)
      schedule.loops.push_back({{std::move(round)}, repeat, chunk, chunk});
  };
  const auto step = [&](std::size_t receive_at, std::size_t received, std::size_t send_at,
                        std::size_t sent) {
    Round round;
    add_receive(round, before, output(receive_at), received);
    if (sends) add_send(round, next, output(send_at), sent);
    return round;
  };
  add_loop(step(0, pieces == 1 ? tail : chunk, 0, 0), 1);
  if (pieces > 2) add_loop(step(chunk, chunk, 0, chunk), pieces - 2);
  if (pieces > 1) add_loop(step((pieces - 1) * chunk, tail, (pieces - 2) * chunk, chunk), 1);
  add_loop(step(0, 0, (pieces - 1) * chunk, tail), 1);
  return schedule;
}

}  // namespace accl::schedule
