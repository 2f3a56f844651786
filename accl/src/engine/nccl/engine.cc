#include "engine/nccl/engine.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "accl/error.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/nccl/library.h"
#include "engine/nccl/mapping.h"
#include "engine/nccl/steering.h"

namespace accl::nccl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostChannels = 64;     // MAXCHANNELS
constexpr int kMostClusterSize = 8;   // thread blocks of a cluster that every GPU with clusters has
constexpr int kTrafficClasses = 256;  // one byte of the IP header
constexpr std::chrono::seconds kPatience{5};  // for NCCL to leave

const Api& api() { return library().api; }

std::string words_of(Result result) {
  const char* text = api().error_text(result);
  const char* last = api().last_error(nullptr);
  return concat(text == nullptr ? "unknown error" : text, " (", result, ")",
                last == nullptr || *last == '\0' ? "" : concat(": ", last));
}

[[noreturn]] void fail(Result result, const char* what) {
  throw SystemError(concat(what, " failed: ", words_of(result), "."), 0);
}

void check_range(const char* what, int value, int least, int most, int unset) {
  if (value == unset || (value >= least && value <= most)) return;
  throw InvalidArgument(concat(what, " is ", value, "; expected ", least, " to ", most, ", or ",
                               unset, " for NCCL's own choice."));
}

int or_undefined(int value, int unset) { return value == unset ? kUndefined : value; }

Config config_of(const EngineOptions& options) {
  Config config;
  const bool named = library().version >= static_cast<int>(kConfigVersion);
  config.version = named ? kConfigVersion : kOldConfigVersion;
  config.size = named ? sizeof(Config) : kOldConfigSize;
  config.blocking = 1;  // join() waits in a thread of its own where the caller shall not
  config.cga_cluster_size = or_undefined(options.cga_cluster_size, -1);
  config.min_ctas = or_undefined(options.min_channels, 0);
  // NCCL takes a least number alone for one above an undefined most, and refuses it.
  const bool least_alone = options.min_channels != 0 && options.max_channels == 0;
  config.max_ctas = least_alone ? kMostChannels : or_undefined(options.max_channels, 0);
  config.traffic_class = or_undefined(options.traffic_class, -1);
  config.net_name = options.network.empty() ? nullptr : options.network.c_str();
  config.split_share = options.split_share ? 1 : kUndefined;
  config.comm_name = options.name.empty() ? nullptr : options.name.c_str();
  return config;
}

// Everything until the scope's end is one operation of NCCL's.
class Group {
 public:
  Group() { started(api().group_start()); }
  ~Group() {
    if (open_) api().group_end();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Result end() {
    open_ = false;
    return api().group_end();
  }

 private:
  static void started(Result result) {
    if (result != kSuccess) fail(result, "ncclGroupStart");
  }
  bool open_ = true;
};

// A buffer with one block a rank: where block r lies, and how many elements it has.
class Blocks {
 public:
  Blocks(const Buffer& buffer, const std::vector<std::size_t>& counts, std::size_t count,
         std::size_t element)
      : buffer_(buffer), counts_(counts), count_(count), element_(element) {}

  std::size_t count(int rank) const {
    return counts_.empty() ? count_ : counts_[static_cast<std::size_t>(rank)];
  }

  std::byte* at(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    if (!buffer_.blocks.empty()) return static_cast<std::byte*>(buffer_.blocks[index].first);
    std::size_t before = count_ * index;
    if (!counts_.empty()) {
      before = 0;
      for (std::size_t i = 0; i < index; ++i) before += counts_[i];
    }
    return static_cast<std::byte*>(buffer_.data) + before * element_;
  }

  // True where the buffer is one array with equal parts, as NCCL's own collectives want it. Not
  // where blocks merely happen to lie in a row: the other ranks' may not, and all must choose
  // alike.
  bool is_array() const { return counts_.empty() && buffer_.blocks.empty(); }

 private:
  const Buffer& buffer_;
  const std::vector<std::size_t>& counts_;
  std::size_t count_;
  std::size_t element_;
};

}  // namespace

// `comm` is taken out before it is aborted or destroyed: whoever has it owns its end.
struct Engine::Handle {
  std::mutex mutex;
  std::condition_variable changed;
  Comm comm = nullptr;
  bool joined = false;     // NCCL has answered
  bool abandoned = false;  // nobody wants the answer any more
  std::string fault;       // why there is no communicator

  Comm take() {
    const std::scoped_lock lock(mutex);
    return std::exchange(comm, nullptr);
  }
};

std::string make_unique_id() {
  UniqueId id{};
  const Result result = api().get_unique_id(&id);
  if (result != kSuccess) fail(result, "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

void validate(const EngineOptions& options) {
  check_range("min_channels", options.min_channels, 1, kMostChannels, 0);
  check_range("max_channels", options.max_channels, 1, kMostChannels, 0);
  if (options.max_channels != 0 && options.min_channels > options.max_channels) {
    throw InvalidArgument(concat("min_channels is ", options.min_channels,
                                 ", which is above max_channels, ", options.max_channels, "."));
  }
  check_range("cga_cluster_size", options.cga_cluster_size, 0, kMostClusterSize, -1);
  check_range("traffic_class", options.traffic_class, 0, kTrafficClasses - 1, -1);
}

std::unique_ptr<Engine> Engine::join(const std::string& unique_id, int rank, int ranks,
                                     driver::Context context, const EngineOptions& options) {
  validate(options);
  library();  // its absence is this thread's error
  prepare_steering();
  UniqueId id{};
  if (unique_id.size() != sizeof id.internal)
    throw InternalError(concat("A unique id of NCCL has ", unique_id.size(), " bytes."));
  std::memcpy(id.internal, unique_id.data(), sizeof id.internal);
  auto handle = std::make_shared<Handle>();
  std::unique_ptr<Engine> engine(new Engine(handle, rank, ranks, context, options.timeout));
  std::thread([handle, id, rank, ranks, context, options] {
    Comm comm = nullptr;
    std::string fault;
    try {
      const driver::Current current(context);
      const SteeringScope scope(options.rules ? *options.rules : Rules{});
      Config config = config_of(options);
      const Result result = api().comm_init(&comm, ranks, id, rank, &config);
      if (result != kSuccess) fault = words_of(result);
    } catch (const std::exception& error) {
      fault = error.what();
    }
    bool abandoned = false;
    {
      const std::scoped_lock lock(handle->mutex);
      abandoned = handle->abandoned;
      handle->joined = true;
      if (fault.empty() && !abandoned) handle->comm = comm;
      handle->fault = fault;
    }
    handle->changed.notify_all();
    if (abandoned && fault.empty()) api().comm_abort(comm);
  }).detach();
  if (options.blocking) engine->wait_until_ready();
  return engine;
}

Engine::Engine(std::shared_ptr<Handle> handle, int rank, int ranks, driver::Context context,
               Milliseconds timeout)
    : handle_(std::move(handle)),
      rank_(rank),
      ranks_(ranks),
      context_(context),
      timeout_(timeout) {}

Engine::~Engine() { abort(); }

std::unique_ptr<Engine> Engine::split(int color, int key, const EngineOptions& options) {
  validate(options);
  wait_until_ready();
  const driver::Current current(context_);
  const SteeringScope scope(options.rules ? *options.rules : Rules{});
  Config config = config_of(options);
  auto handle = std::make_shared<Handle>();
  check(api().comm_split(handle_->comm, color < 0 ? kNoColor : color, key, &handle->comm, &config),
        "ncclCommSplit");
  if (handle->comm == nullptr) return nullptr;
  handle->joined = true;
  int rank = 0;
  int ranks = 0;
  check(api().comm_rank(handle->comm, &rank), "ncclCommUserRank");
  check(api().comm_ranks(handle->comm, &ranks), "ncclCommCount");
  std::unique_ptr<Engine> child(new Engine(handle, rank, ranks, context_, options.timeout));
  child->ready_ = true;
  return child;
}

bool Engine::ready() {
  if (ready_) return true;
  const std::scoped_lock lock(handle_->mutex);
  if (!handle_->joined) return false;
  if (!handle_->fault.empty())
    throw SystemError(concat("ncclCommInitRankConfig failed: ", handle_->fault, "."), 0);
  return ready_ = true;
}

void Engine::wait_until_ready() {
  if (ready_) return;
  {
    std::unique_lock lock(handle_->mutex);
    const auto joined = [this] { return handle_->joined || handle_->abandoned; };
    if (!handle_->changed.wait_for(lock, timeout_, joined)) {
      handle_->abandoned = true;
      throw TimeoutError(concat("NCCL did not connect the ", ranks_, " ranks: Timed out after ",
                                timeout_.count(), " ms on rank ", rank_,
                                "; NCCL_DEBUG=INFO tells how far it came."));
    }
  }
  if (!ready()) throw AbortedError("The communicator was aborted while NCCL connected.");
}

std::string Engine::async_error() noexcept {
  const std::scoped_lock lock(handle_->mutex);
  if (!handle_->fault.empty()) return handle_->fault;
  if (handle_->comm == nullptr) return {};
  Result state = kSuccess;
  const Result asked = api().comm_error(handle_->comm, &state);
  if (asked != kSuccess) return words_of(asked);
  return state == kSuccess || state == kInProgress ? std::string{} : words_of(state);
}

void Engine::abort() noexcept {
  {
    const std::scoped_lock lock(handle_->mutex);
    handle_->abandoned = true;
  }
  handle_->changed.notify_all();
  const Comm comm = handle_->take();
  if (comm == nullptr) return;
  // NCCL's abort waits for its kernels and its threads, and two aborts can wait for each other
  // (nccl #1013): each has a thread of its own.
  try {
    std::thread([comm, context = context_] {
      try {
        const driver::Current current(context);
        api().comm_abort(comm);
      } catch (...) {  // the driver is gone, and the communicator with it
      }
    }).detach();
  } catch (...) {
    log(LogLevel::kWarn, "A communicator of NCCL is left behind: no thread could be started.");
  }
}

void Engine::close() noexcept {
  const Comm comm = handle_->take();
  if (comm == nullptr) return abort();  // not connected yet, or aborted already
  struct Leave {
    std::mutex mutex;
    std::condition_variable done;
    bool left = false;
  };
  try {
    auto leave = std::make_shared<Leave>();
    std::thread([leave, comm, context = context_] {
      try {
        const driver::Current current(context);
        if (api().comm_finalize(comm) == kSuccess) api().comm_destroy(comm);
      } catch (...) {  // as in abort()
      }
      const std::scoped_lock lock(leave->mutex);
      leave->left = true;
      leave->done.notify_all();
    }).detach();
    std::unique_lock lock(leave->mutex);
    if (!leave->done.wait_for(lock, kPatience, [&] { return leave->left; }))
      log(LogLevel::kWarn, "NCCL still closes a communicator; it is left to a thread of its own.");
  } catch (...) {
    log(LogLevel::kWarn, "A communicator of NCCL is left behind: no thread could be started.");
  }
}

void Engine::check(Result result, const char* what) {
  if (result != kSuccess) fail(result, what);
}

namespace {

// Throws InvalidArgument for what NCCL cannot do, before anything of a call or group is enqueued.
void require_possible(const Call& call) {
  if (!is_reduction(call.collective)) return;
  if (reduced(call.dtype, call.op).scaled) scalar_of(call.factor, call.dtype);
}

}  // namespace

void Engine::enqueue(const Call& call, driver::Stream stream, void* scratch) {
  wait_until_ready();
  require_possible(call);
  put(call, stream, scratch);
}

void Engine::enqueue_group(const std::vector<Call>& calls, driver::Stream stream, void* scratch) {
  wait_until_ready();
  for (const Call& call : calls) require_possible(call);
  Group group;
  for (const Call& call : calls) put(call, stream, scratch);
  check(group.end(), "ncclGroupEnd");
}

void Engine::put(const Call& call, driver::Stream stream, void* scratch) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter:
      return put_reduction(call, stream);
    case Collective::kAllGather:
      return put_all_gather(call, stream);
    case Collective::kAllToAll:
      return put_all_to_all(call, stream);
    case Collective::kGather:
      return put_gather(call, stream);
    case Collective::kScatter:
      return put_scatter(call, stream);
    case Collective::kBroadcast: {
      const auto [type, scale] = moved_type(call.dtype);
      const void* source = rank_ == call.root ? call.input.data : call.output.data;
      ++calls_;
      return check(api().broadcast(source, call.output.data, call.count * scale, type, call.root,
                                   handle_->comm, stream),
                   "ncclBroadcast");
    }
    case Collective::kBarrier:
      ++calls_;
      return check(api().all_reduce(scratch, scratch, 1, Type::kInt32, kSum, handle_->comm, stream),
                   "ncclAllReduce");
    case Collective::kSend: {
      const auto [type, scale] = moved_type(call.dtype);
      ++calls_;
      return check(
          api().send(call.input.data, call.count * scale, type, call.peer, handle_->comm, stream),
          "ncclSend");
    }
    case Collective::kRecv: {
      const auto [type, scale] = moved_type(call.dtype);
      ++calls_;
      return check(
          api().recv(call.output.data, call.count * scale, type, call.peer, handle_->comm, stream),
          "ncclRecv");
    }
  }
}

namespace {

// The operation of one call; NCCL lets it be destroyed as soon as the call is enqueued.
class Operation {
 public:
  Operation(const Mapped& mapped, const Call& call, Comm comm) : op_(mapped.op), comm_(comm) {
    if (!mapped.scaled) return;
    Scalar scalar = scalar_of(call.factor, call.dtype);
    const Result result =
        api().redop_create_premul_sum(&op_, scalar.bytes, mapped.type.type, kScalarOnHost, comm);
    if (result != kSuccess) fail(result, "ncclRedOpCreatePreMulSum");
    made_ = true;
  }
  ~Operation() {
    if (made_) api().redop_destroy(op_, comm_);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  Op op() const noexcept { return op_; }

 private:
  Op op_;
  Comm comm_;
  bool made_ = false;
};

}  // namespace

void Engine::put_reduction(const Call& call, driver::Stream stream) {
  const Mapped mapped = reduced(call.dtype, call.op);
  const auto [type, scale] = mapped.type;
  const Comm comm = handle_->comm;
  const Operation operation(mapped, call, comm);
  if (call.collective == Collective::kAllReduce) {
    ++calls_;
    return check(api().all_reduce(call.input.data, call.output.data, call.count * scale, type,
                                  operation.op(), comm, stream),
                 "ncclAllReduce");
  }
  if (call.collective == Collective::kReduce) {
    ++calls_;
    return check(api().reduce(call.input.data, call.output.data, call.count * scale, type,
                              operation.op(), call.root, comm, stream),
                 "ncclReduce");
  }
  const Blocks blocks(call.input, call.counts, call.count, size_of(call.dtype));
  if (blocks.is_array()) {
    ++calls_;
    return check(api().reduce_scatter(blocks.at(0), call.output.data, call.count * scale, type,
                                      operation.op(), comm, stream),
                 "ncclReduceScatter");
  }
  Group group;
  for (int r = 0; r < ranks_; ++r) {
    ++calls_;
    check(api().reduce(blocks.at(r), call.output.data, blocks.count(r) * scale, type,
                       operation.op(), r, comm, stream),
          "ncclReduce");
  }
  check(group.end(), "ncclGroupEnd");
}

void Engine::put_all_gather(const Call& call, driver::Stream stream) {
  const auto [type, scale] = moved_type(call.dtype);
  const Comm comm = handle_->comm;
  const Blocks blocks(call.output, call.counts, call.count, size_of(call.dtype));
  if (blocks.is_array()) {
    ++calls_;
    return check(
        api().all_gather(call.input.data, blocks.at(0), call.count * scale, type, comm, stream),
        "ncclAllGather");
  }
  Group group;
  for (int r = 0; r < ranks_; ++r) {
    ++calls_;
    check(api().broadcast(r == rank_ ? call.input.data : blocks.at(r), blocks.at(r),
                          blocks.count(r) * scale, type, r, comm, stream),
          "ncclBroadcast");
  }
  check(group.end(), "ncclGroupEnd");
}

// Empty parts are left out, here as at the peer: nothing is exchanged for them.
void Engine::put_all_to_all(const Call& call, driver::Stream stream) {
  const auto [type, scale] = moved_type(call.dtype);
  const Comm comm = handle_->comm;
  const std::size_t element = size_of(call.dtype);
  const Blocks sent(call.input, call.counts, call.count, element);
  const Blocks received(call.output, call.receive_counts, call.count, element);
  Group group;
  for (int r = 0; r < ranks_; ++r) {
    if (const std::size_t count = sent.count(r) * scale; count != 0) {
      ++calls_;
      check(api().send(sent.at(r), count, type, r, comm, stream), "ncclSend");
    }
    if (const std::size_t count = received.count(r) * scale; count != 0) {
      ++calls_;
      check(api().recv(received.at(r), count, type, r, comm, stream), "ncclRecv");
    }
  }
  check(group.end(), "ncclGroupEnd");
}

void Engine::put_gather(const Call& call, driver::Stream stream) {
  const auto [type, scale] = moved_type(call.dtype);
  const Comm comm = handle_->comm;
  const Blocks blocks(call.output, call.counts, call.count, size_of(call.dtype));
  const bool is_root = rank_ == call.root;
  const bool in_place = is_root && call.input.data == blocks.at(rank_);
  Group group;
  if (const std::size_t count = blocks.count(rank_) * scale; count != 0 && !in_place) {
    ++calls_;
    check(api().send(call.input.data, count, type, call.root, comm, stream), "ncclSend");
  }
  for (int r = 0; is_root && r < ranks_; ++r) {
    const std::size_t count = blocks.count(r) * scale;
    if (count == 0 || (r == rank_ && in_place)) continue;
    ++calls_;
    check(api().recv(blocks.at(r), count, type, r, comm, stream), "ncclRecv");
  }
  check(group.end(), "ncclGroupEnd");
}

void Engine::put_scatter(const Call& call, driver::Stream stream) {
  const auto [type, scale] = moved_type(call.dtype);
  const Comm comm = handle_->comm;
  const Blocks blocks(call.input, call.counts, call.count, size_of(call.dtype));
  const bool is_root = rank_ == call.root;
  const bool in_place = is_root && call.output.data == blocks.at(rank_);
  Group group;
  for (int r = 0; is_root && r < ranks_; ++r) {
    const std::size_t count = blocks.count(r) * scale;
    if (count == 0 || (r == rank_ && in_place)) continue;
    ++calls_;
    check(api().send(blocks.at(r), count, type, r, comm, stream), "ncclSend");
  }
  if (const std::size_t count = blocks.count(rank_) * scale; count != 0 && !in_place) {
    ++calls_;
    check(api().recv(call.output.data, count, type, call.root, comm, stream), "ncclRecv");
  }
  check(group.end(), "ncclGroupEnd");
}

}  // namespace accl::nccl
