#include "trace/trace.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "trace/dump_file.h"
#include "trace/json.h"

namespace accl::trace {

namespace {

constexpr int kFormat = 1;  // of the document; grows when a key changes its meaning
constexpr std::size_t kBytesPerOperation = 420;  // of the document, about: for one allocation
constexpr int kReadTries = 1000;
constexpr std::uint32_t kMostCalls = (1U << 24) - 1;
constexpr std::size_t kLongestWord = 255;

constexpr std::uint64_t kWriting = 1;

std::uint64_t stamp_of(Handle handle, State state) noexcept {
  return handle << 3 | static_cast<std::uint64_t>(state) << 1;
}
Handle handle_of(std::uint64_t stamp) noexcept { return stamp >> 3; }
State state_of(std::uint64_t stamp) noexcept { return static_cast<State>(stamp >> 1 & 3); }

// The small fields of a record, in one word.
struct Kinds {
  Collective collective;
  DType dtype;
  ReduceOp op;
  std::size_t algorithm_length;
  std::size_t protocol_length;
  std::uint32_t calls;
};

std::uint64_t pack(const Record& record) noexcept {
  const auto length = [](std::string_view word) { return std::min(word.size(), kLongestWord); };
  return static_cast<std::uint64_t>(record.collective) |
         static_cast<std::uint64_t>(record.dtype) << 8 |
         static_cast<std::uint64_t>(record.op) << 16 | length(record.algorithm) << 24 |
         length(record.protocol) << 32 |
         static_cast<std::uint64_t>(std::min(record.calls, kMostCalls)) << 40;
}

Kinds unpack(std::uint64_t word) noexcept {
  const auto byte = [word](int shift) { return static_cast<std::uint8_t>(word >> shift); };
  return {static_cast<Collective>(byte(0)),
          static_cast<DType>(byte(8)),
          static_cast<ReduceOp>(byte(16)),
          byte(24),
          byte(32),
          static_cast<std::uint32_t>(word >> 40)};
}

bool has_root(Collective c) noexcept {
  return c == Collective::kBroadcast || c == Collective::kReduce || c == Collective::kGather ||
         c == Collective::kScatter;
}
bool has_peer(Collective c) noexcept { return c == Collective::kSend || c == Collective::kRecv; }
bool has_op(Collective c) noexcept {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Appends `, "key": value` pairs of one object.
class Fields {
 public:
  explicit Fields(std::string& to) : to_(to) { to_ += '{'; }
  void end() { to_ += '}'; }

  void text(std::string_view key, std::string_view value) {
    name(key);
    append_string(to_, value);
  }
  template <std::integral Number>
  void number(std::string_view key, Number value) {
    name(key);
    append_number(to_, value);
  }
  void null(std::string_view key) {
    name(key);
    to_ += "null";
  }
  void name(std::string_view key) {
    if (!first_) to_ += ", ";
    first_ = false;
    append_string(to_, key);
    to_ += ": ";
  }

 private:
  std::string& to_;
  bool first_ = true;
};

void append_traffic(std::string& text, const Traffic& traffic) {
  Fields fields(text);
  fields.number("messages_sent", traffic.messages_sent);
  fields.number("bytes_sent", traffic.bytes_sent);
  fields.number("messages_received", traffic.messages_received);
  fields.number("bytes_received", traffic.bytes_received);
  fields.number("bytes_reduced", traffic.bytes_reduced);
  fields.end();
}

}  // namespace

std::string_view name_of(State state) noexcept {
  switch (state) {
    case State::kPosted:
      return "posted";
    case State::kStarted:
      return "started";
    case State::kCompleted:
      return "completed";
    case State::kFailed:
      return "failed";
  }
  return "unknown";
}

struct Trace::Operation {
  State state;
  Kinds kinds;
  std::uint64_t sequence;
  std::uint64_t bytes;
  std::uint64_t chunk_bytes;
  std::uint64_t posted;
  std::uint64_t started;
  std::uint64_t ended;
  std::string_view algorithm;
  std::string_view protocol;
  int root_or_peer;
  int tag;
  Traffic traffic;
  Handle handle;
};

Trace::Trace(std::string name, int rank, int size)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      slots_(std::make_unique<std::array<Slot, kCapacity>>()) {}

// Writers store the fields with release, after the stamp that says "being written": a reader that
// sees any new field then also sees a stamp that differs from the one it began with. (Fences would
// do the same, but the thread sanitizer does not know them.)
Handle Trace::begin(const Record& record) noexcept {
  constexpr auto kRelease = std::memory_order_release;
  const Handle handle = next_.load(std::memory_order_relaxed);
  Slot& slot = slot_of(handle);
  const std::uint64_t stamp = stamp_of(handle, State::kPosted);
  slot.stamp.store(stamp | kWriting, std::memory_order_relaxed);
  slot.posted.store(clock_.now(), kRelease);
  slot.started.store(0, kRelease);
  slot.ended.store(0, kRelease);
  slot.sequence.store(record.sequence, kRelease);
  slot.bytes.store(record.bytes, kRelease);
  slot.chunk_bytes.store(record.chunk_bytes, kRelease);
  slot.kinds.store(pack(record), kRelease);
  slot.algorithm.store(record.algorithm.data(), kRelease);
  slot.protocol.store(record.protocol.data(), kRelease);
  slot.root_and_tag.store(static_cast<std::uint64_t>(static_cast<std::uint32_t>(record.tag)) << 32 |
                              static_cast<std::uint32_t>(record.root_or_peer),
                          kRelease);
  slot.stamp.store(stamp, kRelease);
  next_.store(handle + 1, kRelease);
  return handle;
}

// The slot of an operation that may go on to `to`, marked as being written; else null.
Trace::Slot* Trace::open(Handle handle, State to) noexcept {
  Slot& slot = slot_of(handle);
  const std::uint64_t stamp = slot.stamp.load(std::memory_order_relaxed);
  if (handle == 0 || handle_of(stamp) != handle) return nullptr;
  const State from = state_of(stamp);
  if (from >= State::kCompleted || to <= from) return nullptr;
  slot.stamp.store(stamp_of(handle, to) | kWriting, std::memory_order_relaxed);
  return &slot;
}

void Trace::started(Handle handle) noexcept {
  Slot* slot = open(handle, State::kStarted);
  if (slot == nullptr) return;
  slot->started.store(clock_.now(), std::memory_order_release);
  slot->stamp.store(stamp_of(handle, State::kStarted), std::memory_order_release);
}

void Trace::finished(Handle handle, const Traffic& traffic) noexcept {
  constexpr auto kRelease = std::memory_order_release;
  Slot* slot = open(handle, State::kCompleted);
  if (slot == nullptr) return;
  slot->ended.store(clock_.now(), kRelease);
  slot->traffic[0].store(traffic.messages_sent, kRelease);
  slot->traffic[1].store(traffic.bytes_sent, kRelease);
  slot->traffic[2].store(traffic.messages_received, kRelease);
  slot->traffic[3].store(traffic.bytes_received, kRelease);
  slot->traffic[4].store(traffic.bytes_reduced, kRelease);
  slot->stamp.store(stamp_of(handle, State::kCompleted), kRelease);
}

void Trace::failed(Handle handle, std::string_view error) noexcept {
  Slot* slot = open(handle, State::kFailed);
  if (slot == nullptr) return;
  try {
    const std::scoped_lock lock(errors_mutex_);
    const Handle next = next_.load(std::memory_order_relaxed);
    errors_.erase(errors_.begin(), errors_.lower_bound(next > kCapacity ? next - kCapacity : 0));
    const bool known = !errors_.empty() && *errors_.rbegin()->second == error;
    errors_[handle] = known ? errors_.rbegin()->second : std::make_shared<const std::string>(error);
  } catch (const std::exception&) {
    // No memory for the text: the state still says that it failed.
  }
  slot->ended.store(clock_.now(), std::memory_order_release);
  slot->stamp.store(stamp_of(handle, State::kFailed), std::memory_order_release);
}

// False where the operation has left the ring, or is being written all the time.
bool Trace::read(Handle handle, Operation& operation) const noexcept {
  constexpr auto kAcquire = std::memory_order_acquire;
  const Slot& slot = slot_of(handle);
  for (int i = 0; i < kReadTries; ++i) {
    const std::uint64_t stamp = slot.stamp.load(kAcquire);
    if (handle_of(stamp) != handle) return false;
    if ((stamp & kWriting) != 0) continue;
    const Kinds kinds = unpack(slot.kinds.load(kAcquire));
    const std::uint64_t root_and_tag = slot.root_and_tag.load(kAcquire);
    operation = {state_of(stamp),
                 kinds,
                 slot.sequence.load(kAcquire),
                 slot.bytes.load(kAcquire),
                 slot.chunk_bytes.load(kAcquire),
                 slot.posted.load(kAcquire),
                 slot.started.load(kAcquire),
                 slot.ended.load(kAcquire),
                 {slot.algorithm.load(kAcquire), kinds.algorithm_length},
                 {slot.protocol.load(kAcquire), kinds.protocol_length},
                 static_cast<int>(static_cast<std::uint32_t>(root_and_tag)),
                 static_cast<int>(static_cast<std::uint32_t>(root_and_tag >> 32)),
                 {slot.traffic[0].load(kAcquire), slot.traffic[1].load(kAcquire),
                  slot.traffic[2].load(kAcquire), slot.traffic[3].load(kAcquire),
                  slot.traffic[4].load(kAcquire)},
                 handle};
    if (slot.stamp.load(std::memory_order_relaxed) == stamp) return true;
  }
  return false;
}

std::string Trace::error_of(Handle handle) const {
  const std::scoped_lock lock(errors_mutex_);
  const auto found = errors_.find(handle);
  return found == errors_.end() ? "" : *found->second;
}

void Trace::append(std::string& text, const Operation& operation, const Anchor& anchor) const {
  const Kinds& kinds = operation.kinds;
  Fields fields(text);
  const auto optional = [&fields](std::string_view key, bool given, std::int64_t value) {
    given ? fields.number(key, value) : fields.null(key);
  };
  const auto time = [&](std::string_view key, std::uint64_t ticks) {
    optional(key, ticks != 0, clock_.to_steady_ns(ticks, anchor));
  };
  fields.number("sequence", operation.sequence);
  fields.text("collective", name_of(kinds.collective));
  fields.text("state", name_of(operation.state));
  fields.number("bytes", operation.bytes);
  fields.text("dtype", name_of(kinds.dtype));
  has_op(kinds.collective) ? fields.text("reduce_op", name_of(kinds.op)) : fields.null("reduce_op");
  const bool peer = has_peer(kinds.collective);
  optional("root", has_root(kinds.collective), operation.root_or_peer);
  optional("peer", peer && operation.root_or_peer >= 0, operation.root_or_peer);
  optional("tag", peer, operation.tag);
  fields.number("calls", kinds.calls);
  fields.text("algorithm", operation.algorithm);
  fields.text("protocol", operation.protocol);
  fields.number("chunk_bytes", operation.chunk_bytes);
  time("posted_ns", operation.posted);
  time("started_ns", operation.started);
  time("ended_ns", operation.ended);
  if (operation.state == State::kCompleted) {
    fields.name("traffic");
    append_traffic(text, operation.traffic);
  } else {
    fields.null("traffic");
  }
  if (operation.state == State::kFailed) {
    fields.text("error", error_of(operation.handle));
  } else {
    fields.null("error");
  }
  fields.end();
}

void Trace::append_header(std::string& text, std::string_view reason, const Anchor& anchor,
                          Handle next) const {
  Fields fields(text);
  fields.number("accl_trace", kFormat);
  fields.text("communicator", name_);
  fields.number("rank", rank_);
  fields.number("size", size_);
  fields.number("pid", ::getpid());
  fields.text("host", host_name());
  fields.text("version", kVersion);
  fields.text("reason", reason);
  fields.number("steady_ns", anchor.steady_ns);
  fields.number("unix_ns", anchor.unix_ns);
  fields.number("capacity", kCapacity);
  fields.number("recorded", next - 1);
  fields.name("operations");
}

std::string Trace::to_json(std::string_view reason) const {
  const Handle next = next_.load(std::memory_order_acquire);
  const Handle first = next > kCapacity ? next - kCapacity : 1;
  // All first, then the anchor: it must be later than every time that it translates.
  std::unique_ptr<Operation[]> operations(new Operation[next - first]);
  std::size_t count = 0;
  for (Handle handle = first; handle < next; ++handle) {
    if (read(handle, operations[count])) ++count;
  }
  const Anchor anchor = clock_.anchor();
  std::string text;
  text.reserve(512 + count * kBytesPerOperation);
  append_header(text, reason, anchor, next);
  text += '[';
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "\n" : ",\n";
    append(text, operations[i], anchor);
  }
  text += count == 0 ? "]}\n" : "\n]}\n";
  return text;
}

std::string Trace::dump(const std::string& directory, std::string_view reason) const noexcept {
  try {
    const std::string who = concat("communicator '", name_, "', rank ", rank_);
    try {
      const std::string path = write_dump(directory, dump_stem(name_, rank_), to_json(reason));
      log(LogLevel::kWarn, concat("The trace of ", who, " was written to ", path, "."));
      return path;
    } catch (const std::exception& error) {
      log(LogLevel::kWarn, concat("The trace of ", who, " could not be written: ", error.what()));
    }
  } catch (...) {
    // No memory even for a log line; the error that led here is what counts.
  }
  return {};
}

}  // namespace accl::trace
