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

// A buffer as the call must have it: blocks laid end to end where it is contiguous. Even blocks
// need no list: this runs in every call.
class Layout {
 public:
  static Layout even(std::size_t block, int blocks) {
    return {block, static_cast<std::size_t>(blocks), nullptr};
  }
  static Layout uneven(const std::vector<std::size_t>& blocks) {
    return {0, blocks.size(), &blocks};
  }
  std::size_t blocks() const { return count_; }
  std::size_t operator[](std::size_t i) const {
    return uneven_ == nullptr ? block_ : (*uneven_)[i];
  }
  std::size_t bytes_before(std::size_t i) const {
    if (uneven_ == nullptr) return i * block_;
    return std::accumulate(uneven_->begin(), uneven_->begin() + static_cast<std::ptrdiff_t>(i),
                           std::size_t{0});
  }
  std::size_t bytes() const { return bytes_before(count_); }

 private:
  Layout(std::size_t block, std::size_t count, const std::vector<std::size_t>* uneven)
      : block_(block), count_(count), uneven_(uneven) {}
  std::size_t block_;
  std::size_t count_;
  const std::vector<std::size_t>* uneven_;
};

void check_blocks(const Call& call, const Buffer& buffer, const Layout& layout, const char* which) {
  if (buffer.blocks.size() != layout.blocks()) {
    refuse(call, concat("the ", which, " has ", buffer.blocks.size(), " blocks, expected ",
                        layout.blocks()));
  }
  for (std::size_t i = 0; i < layout.blocks(); ++i) {
    const auto& [data, bytes] = buffer.blocks[i];
    if (bytes != layout[i]) {
      refuse(call, concat("block ", i, " of the ", which, " has ", bytes, " bytes, expected ",
                          layout[i]));
    }
    if (data == nullptr && bytes != 0)
      refuse(call, concat("block ", i, " of the ", which, " is null"));
  }
}

void check_buffer(const Call& call, const Buffer& buffer, const Layout& layout, const char* which) {
  if (!buffer.blocks.empty()) return check_blocks(call, buffer, layout, which);
  if (buffer.data == nullptr && layout.bytes() != 0) {
    refuse(call, concat("the ", which, " is null, where ", layout.bytes(), " bytes are expected"));
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
  check_buffer(call, sends ? call.input : call.output, Layout::even(bytes, 1),
               sends ? "input" : "output");
  (void)rank;
  CallSizes sizes;
  sizes.block_bytes = bytes;
  sizes.rules_bytes = bytes;
  return sizes;
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
  const bool many_blocks = takes_counts(call.collective);
  if (is_uneven(call)) {
    if (!many_blocks) refuse(call, "counts are given, but this collective takes none");
    sizes.blocks = in_bytes(call, call.counts, ranks, "counts");
    if (call.collective == Collective::kAllToAll) {
      sizes.receive_blocks = in_bytes(call, call.receive_counts, ranks, "receive_counts");
    } else if (!call.receive_counts.empty()) {
      refuse(call, "receive_counts are given, but only all_to_all takes them");
    }
  } else {
    sizes.block_bytes = product(call, call.count, size_of(call.dtype));
    sizes.rules_bytes = many_blocks
                            ? product(call, sizes.block_bytes, static_cast<std::size_t>(ranks))
                            : sizes.block_bytes;
  }
  // The buffer that holds one block a rank, the output of all_to_all, and one rank's own block.
  const Layout many =
      is_uneven(call) ? Layout::uneven(sizes.blocks) : Layout::even(sizes.block_bytes, ranks);
  const Layout received =
      sizes.receive_blocks.empty() ? many : Layout::uneven(sizes.receive_blocks);
  const auto own = static_cast<std::size_t>(rank);
  const Layout one = Layout::even(many[own], 1);
  const auto own_offset = static_cast<std::ptrdiff_t>(many.bytes_before(own));
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
