#include "communicator/validate.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "accl/error.h"
#include "base/text.h"

namespace accl {

namespace {

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  throw InvalidArgument(concat(name_of(call.collective), ": ", why, "."));
}

// A buffer as the call must have it: `blocks` sizes in bytes, laid end to end where it is
// contiguous.
struct Layout {
  std::vector<std::size_t> blocks;
  std::size_t bytes() const {
    return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0});
  }
};

void check_buffer(const Call& call, const Buffer& buffer, const Layout& layout, const char* which) {
  if (buffer.blocks.empty()) {
    if (buffer.data == nullptr && layout.bytes() != 0) {
      refuse(call,
             concat("the ", which, " is null, where ", layout.bytes(), " bytes are expected"));
    }
    return;
  }
  if (buffer.blocks.size() != layout.blocks.size()) {
    refuse(call, concat("the ", which, " has ", buffer.blocks.size(), " blocks, expected ",
                        layout.blocks.size()));
  }
  for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
    const auto& [data, bytes] = buffer.blocks[i];
    if (bytes != layout.blocks[i]) {
      refuse(call, concat("block ", i, " of the ", which, " has ", bytes, " bytes, expected ",
                          layout.blocks[i]));
    }
    if (data == nullptr && bytes != 0)
      refuse(call, concat("block ", i, " of the ", which, " is null"));
  }
}

// In and out may not overlap, except that both start at `allowed` (the own block).
void check_overlap(const Call& call, std::size_t in_bytes, std::size_t out_bytes,
                   std::ptrdiff_t allowed_offset, bool allowed) {
  if (!call.input.blocks.empty() || !call.output.blocks.empty()) return;
  const auto* in = static_cast<const std::byte*>(call.input.data);
  const auto* out = static_cast<const std::byte*>(call.output.data);
  if (in_bytes == 0 || out_bytes == 0 || in == nullptr || out == nullptr) return;
  const std::less<> before;
  if (!before(in, out + out_bytes) || !before(out, in + in_bytes)) return;
  if (allowed && in - out == allowed_offset) return;
  refuse(call, allowed ? "input and output overlap in part; they must be apart, or in place exactly"
                       : "input and output overlap; this collective cannot be in place");
}

std::size_t product(const Call& call, std::size_t a, std::size_t b) {
  if (b != 0 && a > std::numeric_limits<std::size_t>::max() / 2 / b) {
    refuse(call, concat("a count of ", call.count, " elements is more than memory can hold"));
  }
  return a * b;
}

std::vector<std::size_t> in_bytes(const Call& call, const std::vector<std::size_t>& counts,
                                  int ranks, const char* which) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    refuse(call, concat(which, " has ", counts.size(), " entries, expected one a rank: ", ranks));
  }
  std::vector<std::size_t> bytes;
  for (const std::size_t count : counts) bytes.push_back(product(call, count, size_of(call.dtype)));
  return bytes;
}

bool takes_counts(Collective c) {
  return c == Collective::kAllGather || c == Collective::kReduceScatter ||
         c == Collective::kGather || c == Collective::kScatter || c == Collective::kAllToAll;
}

void check_words(const Call& call, int ranks) {
  if (static_cast<int>(call.collective) >= kCollectiveCount) {
    throw InvalidArgument(
        concat("Collective number ", static_cast<int>(call.collective), " does not exist."));
  }
  if (static_cast<int>(call.dtype) >= kDTypeCount) refuse(call, "unknown dtype");
  if (is_reducing(call.collective) && !supports(call.op, call.dtype)) {
    refuse(call,
           concat("operation ", name_of(call.op), " is not defined for ", name_of(call.dtype)));
  }
  if (is_rooted(call.collective) && (call.root < 0 || call.root >= ranks)) {
    refuse(call, concat("root ", call.root, " is not a rank; expected 0 to ", ranks - 1));
  }
  if (call.timeout < Milliseconds::zero()) {
    refuse(call, concat("timeout ", call.timeout.count(), " ms is negative"));
  }
}

CallSizes validate_point_to_point(const Call& call, int rank, int ranks) {
  const bool any = call.collective == Collective::kRecv && call.peer == kAnySource;
  if (!any && (call.peer < 0 || call.peer >= ranks)) {
    refuse(call, concat("peer ", call.peer, " is not a rank; expected 0 to ", ranks - 1,
                        call.collective == Collective::kRecv ? ", or -1 for any source" : ""));
  }
  const std::size_t bytes = product(call, call.count, size_of(call.dtype));
  const bool sends = call.collective == Collective::kSend;
  check_buffer(call, sends ? call.input : call.output, {{bytes}}, sends ? "input" : "output");
  (void)rank;
  CallSizes sizes;
  sizes.block_bytes = bytes;
  sizes.rules_bytes = bytes;
  return sizes;
}

Layout repeated(std::size_t block, int ranks) {
  return {std::vector(static_cast<std::size_t>(ranks), block)};
}

}  // namespace

bool is_point_to_point(Collective c) noexcept {
  return c == Collective::kSend || c == Collective::kRecv;
}

bool is_rooted(Collective c) noexcept {
  return c == Collective::kBroadcast || c == Collective::kReduce || c == Collective::kGather ||
         c == Collective::kScatter;
}

bool is_reducing(Collective c) noexcept {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

bool is_uneven(const Call& call) noexcept {
  return !call.counts.empty() || !call.receive_counts.empty();
}

CallSizes validate(const Call& call, int rank, int ranks) {
  check_words(call, ranks);
  if (is_point_to_point(call.collective)) return validate_point_to_point(call, rank, ranks);
  if (call.collective == Collective::kBarrier) return {};

  CallSizes sizes;
  Layout many;      // the buffer that holds one block a rank
  Layout received;  // the output of all_to_all
  if (is_uneven(call)) {
    if (!takes_counts(call.collective))
      refuse(call, "counts are given, but this collective takes none");
    sizes.blocks = in_bytes(call, call.counts, ranks, "counts");
    many.blocks = received.blocks = sizes.blocks;
    if (call.collective == Collective::kAllToAll) {
      sizes.receive_blocks = in_bytes(call, call.receive_counts, ranks, "receive_counts");
      received.blocks = sizes.receive_blocks;
    } else if (!call.receive_counts.empty()) {
      refuse(call, "receive_counts are given, but only all_to_all takes them");
    }
  } else {
    sizes.block_bytes = product(call, call.count, size_of(call.dtype));
    if (takes_counts(call.collective))
      product(call, sizes.block_bytes, static_cast<std::size_t>(ranks));
    many = received = repeated(sizes.block_bytes, ranks);
    sizes.rules_bytes = takes_counts(call.collective) ? many.bytes() : sizes.block_bytes;
  }
  const auto own = static_cast<std::size_t>(rank);
  const Layout one = {{takes_counts(call.collective) ? many.blocks[own] : sizes.block_bytes}};
  const auto own_offset = static_cast<std::ptrdiff_t>(
      std::accumulate(many.blocks.begin(), many.blocks.begin() + rank, std::size_t{0}));
  const bool is_root = rank == call.root;

  switch (call.collective) {
    case Collective::kAllReduce:
      check_buffer(call, call.input, one, "input");
      check_buffer(call, call.output, one, "output");
      check_overlap(call, one.bytes(), one.bytes(), 0, true);
      break;
    case Collective::kBroadcast:
      if (is_root) check_buffer(call, call.input, one, "input");
      check_buffer(call, call.output, one, "output");
      if (is_root) check_overlap(call, one.bytes(), one.bytes(), 0, true);
      break;
    case Collective::kReduce:
      check_buffer(call, call.input, one, "input");
      if (is_root) check_buffer(call, call.output, one, "output");
      if (is_root) check_overlap(call, one.bytes(), one.bytes(), 0, true);
      break;
    case Collective::kAllGather:
      check_buffer(call, call.input, one, "input");
      check_buffer(call, call.output, many, "output");
      check_overlap(call, one.bytes(), many.bytes(), own_offset, true);
      break;
    case Collective::kGather:
      check_buffer(call, call.input, one, "input");
      if (is_root) check_buffer(call, call.output, many, "output");
      if (is_root) check_overlap(call, one.bytes(), many.bytes(), own_offset, true);
      break;
    case Collective::kReduceScatter:
      check_buffer(call, call.input, many, "input");
      check_buffer(call, call.output, one, "output");
      check_overlap(call, many.bytes(), one.bytes(), -own_offset, true);
      break;
    case Collective::kScatter:
      if (is_root) check_buffer(call, call.input, many, "input");
      check_buffer(call, call.output, one, "output");
      if (is_root) check_overlap(call, many.bytes(), one.bytes(), -own_offset, true);
      break;
    case Collective::kAllToAll:
      check_buffer(call, call.input, many, "input");
      check_buffer(call, call.output, received, "output");
      check_overlap(call, many.bytes(), received.bytes(), 0, false);
      break;
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      break;  // handled above
  }
  return sizes;
}

std::string describe(Collective collective, std::uint64_t count, bool uneven, DType dtype,
                     ReduceOp op, int root) {
  if (collective == Collective::kBarrier) return "barrier";
  std::string text = std::string(name_of(collective));
  text += uneven ? " of uneven counts of " : concat(" of ", count, " ");
  text += name_of(dtype);
  if (is_reducing(collective)) text += concat(" (", name_of(op), ")");
  if (is_rooted(collective)) {
    const bool from = collective == Collective::kBroadcast || collective == Collective::kScatter;
    text += concat(from ? " from root " : " to root ", root);
  }
  return text;
}

std::string describe(const Call& call) {
  if (!is_point_to_point(call.collective)) {
    return describe(call.collective, call.count, is_uneven(call), call.dtype, call.op, call.root);
  }
  const bool sends = call.collective == Collective::kSend;
  const std::string peer = call.peer == kAnySource ? "any rank" : concat("rank ", call.peer);
  return concat(name_of(call.collective), " of ", call.count, " ", name_of(call.dtype),
                sends ? " to " : " from ", peer, " with tag ", call.tag);
}

}  // namespace accl
