// The fake NCCL: see fakes.h. Data moves in team.h; this is the interface, communicators and
// groups.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "elements.h"
#include "fakes.h"
#include "team.h"
#include "tuner.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace accl::driver {

#define FAKE_DECLARE(member, symbol, parameters) \
  extern "C" Result cuda_##member parameters __asm__(symbol);
ACCL_DRIVER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

}  // namespace accl::driver

namespace accl::nccl {

// fake_comm_init is what the linker calls ncclCommInitRankConfig, and so on: a definition with
// other parameters than the table's does not compile.
#define FAKE_DECLARE(member, symbol, parameters) \
  FAKE_EXPORT Result fake_##member parameters __asm__(symbol);
ACCL_NCCL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

namespace {

using fake::Function;
using fake::Item;
using fake::Place;
using fake::PlacedItem;
using fake::Team;

constexpr int kBuiltInOps = 5;

struct UserOp {
  Type type;
  std::byte factor[8];
};

}  // namespace

// Never freed, so that a use after its end is noticed.
struct Comm_ {
  Config config;  // its texts are the two below
  std::string name;
  std::string network;
  driver::Context context = nullptr;
  int device = 0;
  int rank = 0;
  std::shared_ptr<Team> team;

  std::mutex mutex;
  std::condition_variable changed;
  Result state = kSuccess;  // what ncclCommGetAsyncError tells
  bool initializing = false;
  bool finalized = false;
  bool aborted = false;
  bool ended = false;   // destroyed, or aborted to the end
  int outstanding = 0;  // batches that were put on streams
  int running = 0;      // of them, those that are waiting for other ranks
  std::uint64_t splits = 0;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sends;
  std::map<int, std::uint64_t> receives;
  std::map<Op, UserOp> ops;
  std::string log;
  std::unique_ptr<fake::Tuner> tuner;

  bool blocking() const { return config.blocking != 0; }
};

namespace {

// Process-wide. Never destroyed: threads of streams run until the process ends.
struct Failure {
  std::string function;
  Result result;
};
struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<Comm_>> comms;
  std::map<std::string, std::shared_ptr<Team>> teams;  // by unique id; null before the first rank
  std::map<std::string, long, std::less<>> calls;
  std::vector<Failure> failures;
  std::uint64_t ids = 0;
  Op next_op = kBuiltInOps;
};

State& state() {
  static auto& made = *new State;
  return made;
}

thread_local std::string last_error;

Result refuse(Result result, std::string text) {
  last_error = std::move(text);
  return result;
}

[[noreturn]] void misuse(const char* function, const char* what) {
  std::fprintf(stderr, "fake NCCL: %s: %s\n", function, what);
  std::abort();
}

int version() {
  static const int value = [] {
    const char* text = std::getenv("FAKE_NCCL_VERSION");
    return text == nullptr ? 22809 : std::atoi(text);
  }();
  return value;
}

thread_local std::vector<Failure> failures_here;

Result take_failure(std::vector<Failure>& failures, const char* function) {
  const auto found = std::find_if(failures.begin(), failures.end(), [&](const Failure& failure) {
    return failure.function == function;
  });
  if (found == failures.end()) return kSuccess;
  const Result result = found->result;
  failures.erase(found);
  return refuse(result, "a test asked for this failure");
}

// Counts the call; what a test has asked for instead of it, else success.
Result enter(const char* function) {
  const std::scoped_lock lock(state().mutex);
  ++state().calls[function];
  const Result here = take_failure(failures_here, function);
  return here != kSuccess ? here : take_failure(state().failures, function);
}

// Ends the process for a communicator that has ended.
Result use(const char* function, Comm comm) {
  if (comm == nullptr) return refuse(kInvalidArgument, "comm argument is NULL");
  {
    const std::scoped_lock lock(state().mutex);
    const auto& comms = state().comms;
    if (std::none_of(comms.begin(), comms.end(), [&](const auto& c) { return c.get() == comm; }))
      misuse(function, "a communicator that never was one.");
  }
  const std::scoped_lock lock(comm->mutex);
  if (comm->ended) misuse(function, "a communicator is used after its end.");
  return kSuccess;
}

Result ensure_ready(Comm comm) {
  const std::scoped_lock lock(comm->mutex);
  if (comm->aborted) return refuse(kInvalidUsage, "the communicator is being aborted");
  if (comm->state == kInProgress)
    return refuse(kInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  return comm->state;
}

Result use_ready(const char* function, Comm comm) {
  const Result result = use(function, comm);
  return result == kSuccess ? ensure_ready(comm) : result;
}

void end(Comm comm) {
  std::unique_ptr<fake::Tuner> tuner;
  const std::scoped_lock lock(comm->mutex);
  tuner = std::move(comm->tuner);
  comm->ended = true;
}

// Makes a context current for a scope.
class Current {
 public:
  explicit Current(driver::Context context) {
    driver::cuda_context_get(&before_);
    driver::cuda_context_set(context);
  }
  ~Current() { driver::cuda_context_set(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  driver::Context before_ = nullptr;
};

// Configurations.

bool is_flag(int value) { return value == kUndefined || value == 0 || value == 1; }

// With NCCL's own oddity: minCTAs alone is above an undefined maxCTAs, and refused.
Result check(const Config& config) {
  if (config.magic != 0xcafebeef)
    return refuse(kInvalidArgument,
                  "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  const auto invalid = [](const char* what, int value) {
    return refuse(kInvalidArgument, std::string("Invalid config ") + what + " attribute value " +
                                        std::to_string(value));
  };
  if (!is_flag(config.blocking)) return invalid("blocking", config.blocking);
  if (config.cga_cluster_size != kUndefined && config.cga_cluster_size < 0)
    return invalid("cgaClusterSize", config.cga_cluster_size);
  if (config.min_ctas != kUndefined && config.min_ctas <= 0)
    return invalid("minCTAs", config.min_ctas);
  if (config.max_ctas != kUndefined && config.max_ctas <= 0)
    return invalid("maxCTAs", config.max_ctas);
  if (config.min_ctas > config.max_ctas) return invalid("min/max channels", config.min_ctas);
  if (!is_flag(config.split_share)) return invalid("splitShare", config.split_share);
  if (!is_flag(config.collnet_enable)) return invalid("collnetEnable", config.collnet_enable);
  if (!is_flag(config.shrink_share)) return invalid("shrinkShare", config.shrink_share);
  return kSuccess;
}

// Reads what the given size, and the version that it names, have.
Result read(const Config* given, Config* config) {
  *config = Config{};
  if (given == nullptr) return kSuccess;
  const std::size_t known = version() >= 22700 ? sizeof(Config) : kOldConfigSize;
  config->magic = 0;
  std::memcpy(static_cast<void*>(config), static_cast<const void*>(given),
              std::min(given->size, known));
  config->size = given->size;
  if (config->version < 22500) config->traffic_class = kUndefined;
  if (config->version < 22700) {
    config->comm_name = nullptr;
    config->collnet_enable = config->cta_policy = config->shrink_share = kUndefined;
  }
  return check(*config);
}

// Of a split: before its rank and team are known.
Comm make_comm(const Config& config, int rank = 0, std::shared_ptr<Team> team = nullptr) {
  auto made = std::make_unique<Comm_>();
  made->rank = rank;
  made->team = std::move(team);
  made->initializing = true;
  made->state = kInProgress;
  made->config = config;
  if (config.comm_name != nullptr) made->config.comm_name = (made->name = config.comm_name).c_str();
  if (config.net_name != nullptr) made->config.net_name = (made->network = config.net_name).c_str();
  driver::cuda_context_get(&made->context);
  made->device = fake_cuda_device_of(nullptr);
  const std::scoped_lock lock(state().mutex);
  state().comms.push_back(std::move(made));
  return state().comms.back().get();
}

// Making communicators.

using Connect = std::function<Result(Comm)>;

Result start_tuner(Comm comm) {
  auto tuner = std::make_unique<fake::Tuner>();
  const Result result = tuner->start(version(), comm->team->id(), comm->team->size());
  if (result != kSuccess) return refuse(result, "the tuner plugin refused the communicator");
  const std::scoped_lock lock(comm->mutex);
  comm->tuner = std::move(tuner);
  return kSuccess;
}

Result connect(Comm comm, const Connect& how) {
  const Current current(comm->context);
  Result result = how(comm);
  if (result == kSuccess) result = start_tuner(comm);
  const std::scoped_lock lock(comm->mutex);
  comm->initializing = false;
  if (comm->state == kInProgress) comm->state = result;
  comm->changed.notify_all();
  return result;
}

// Another thread may read the handle meanwhile, to abort.
void publish(Comm* out, Comm comm) { __atomic_store_n(out, comm, __ATOMIC_RELEASE); }

// Before 2.28 NCCL connects in a thread of its own also where the caller waits.
Result connect_and_wait(Comm comm, const Connect& how) {
  if (version() >= 22800) return connect(comm, how);
  Result result = kSuccess;
  std::string words;
  std::thread([&] {
    result = connect(comm, how);
    words = last_error;
  }).join();
  if (result != kSuccess) last_error = words;
  return result;
}

// The communicator is there for abort() while the others are waited for.
Result start(Comm comm, Comm* out, Connect how) {
  publish(out, comm);
  if (!comm->blocking()) {
    std::thread([comm, how = std::move(how)] { connect(comm, how); }).detach();
    return kInProgress;
  }
  const Result result = connect_and_wait(comm, how);
  if (result == kSuccess) return result;
  publish(out, nullptr);
  const std::scoped_lock lock(comm->mutex);
  if (!comm->aborted) comm->ended = true;  // else abort() ends it
  return result;
}

Result join(Comm comm) {
  driver::Uuid gpu{};
  driver::cuda_device_uuid(&gpu, comm->device);
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = version() >= 23000 && shared != nullptr && std::strcmp(shared, "1") == 0;
  std::string fault;
  if (comm->team->join(comm->rank, gpu, may_share, &fault)) return kSuccess;
  if (fault.empty()) return refuse(kInternalError, "the communicator was aborted");
  return refuse(kInvalidUsage, fault);
}

Result find_team(const UniqueId& id, int ranks, std::shared_ptr<Team>* team) {
  const std::scoped_lock lock(state().mutex);
  const auto found = state().teams.find(std::string(id.internal, sizeof id.internal));
  if (found == state().teams.end())
    return refuse(kInvalidArgument, "the unique id was not made by ncclGetUniqueId");
  if (!found->second) {
    std::uint64_t number = 0;
    std::memcpy(&number, id.internal, sizeof number);
    found->second = std::make_shared<Team>(ranks, number * 0x9e3779b97f4a7c15U);
  }
  if (found->second->size() != ranks)
    return refuse(kInvalidArgument, "ranks of one unique id give different numbers of ranks");
  *team = found->second;
  return kSuccess;
}

// Groups.

struct Pending {
  const char* function;
  Comm comm;
  Item item;
  driver::Stream stream;
};
struct Group {
  int depth = 0;
  Result error = kSuccess;
  std::vector<Pending> pending;
};
thread_local Group group;

Result in_group(Result result) {
  if (group.depth > 0 && result != kSuccess) group.error = result;
  return result;
}

bool is_message(Function function) {
  return function == Function::kSend || function == Function::kRecv;
}
bool has_op(Function function) {
  return function == Function::kAllReduce || function == Function::kReduce ||
         function == Function::kReduceScatter;
}

const char* op_name(const Item& item) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg"};
  return item.scaled ? "premul" : kNames[item.op];
}

std::string line_of(const Pending& pending, bool captured, const std::string& chosen) {
  const Item& item = pending.item;
  std::string line = std::string(pending.function) + " count=" + std::to_string(item.count) +
                     " type=" + fake::name_of(item.type);
  if (has_op(item.function)) line += std::string(" op=") + op_name(item);
  if (is_message(item.function))
    line += " peer=" + std::to_string(item.root);
  else if (item.root >= 0)
    line += " root=" + std::to_string(item.root);
  return line + " captured=" + (captured ? "1" : "0") + chosen + "\n";
}

// NCCL's size of a call: what the larger of its two buffers has on all ranks together.
Result ask_tuner(Comm comm, const Item& item, std::string* chosen) {
  if (comm->team->size() == 1 || item.count == 0) return kSuccess;
  const bool whole =
      item.function == Function::kAllGather || item.function == Function::kReduceScatter;
  const auto parts = static_cast<std::size_t>(whole ? comm->team->size() : 1);
  return comm->tuner->ask(item.function, item.count * parts * fake::bytes_of(item.type), chosen);
}

// What one launch does, on the stream's thread.
struct Batch {
  Comm comm;
  std::shared_ptr<Team> team;
  std::vector<PlacedItem> items;
};

void run_batch(void* data) {
  const std::unique_ptr<Batch> batch(static_cast<Batch*>(data));
  const Comm comm = batch->comm;
  const auto count = [&](int outstanding, int running) {
    const std::scoped_lock lock(comm->mutex);
    comm->outstanding += outstanding;
    comm->running += running;
    comm->changed.notify_all();
  };
  count(0, 1);
  batch->team->run(comm->rank, batch->items);
  count(-1, -1);
}

// Needs the communicator's mutex.
Place next_place(Comm comm, const Item& item) {
  if (item.function == Function::kSend) return {comm->rank, item.root, comm->sends[item.root]++};
  if (item.function == Function::kRecv) return {item.root, comm->rank, comm->receives[item.root]++};
  return {-1, -1, comm->collectives++};
}

Result launch(Comm comm, const std::vector<Pending>& calls) {
  const driver::Stream stream = calls[0].stream;
  const Current current(comm->context);
  if (fake_cuda_device_of(stream) != comm->device)
    return refuse(kUnhandledCudaError, "Cuda failure 400 'invalid resource handle'");
  int status = 0;
  driver::cuda_stream_capture_status(stream, &status);
  auto batch = std::make_unique<Batch>(Batch{comm, comm->team, {}});
  {
    const std::scoped_lock lock(comm->mutex);
    for (const Pending& call : calls) {
      std::string chosen;
      if (const Result result = ask_tuner(comm, call.item, &chosen); result != kSuccess)
        return refuse(result, "the tuner plugin failed");
      comm->log += line_of(call, status != 0, chosen);
      const bool empty = call.item.count == 0 && !is_message(call.item.function);
      if (!empty && status == 0) batch->items.push_back({next_place(comm, call.item), call.item});
    }
    if (batch->items.empty()) return kSuccess;
    ++comm->outstanding;
  }
  driver::cuda_host_function(stream, run_batch, batch.release());
  return kSuccess;
}

Result launch_group(std::vector<Pending> pending) {
  while (!pending.empty()) {
    const Comm comm = pending[0].comm;
    std::vector<Pending> own;
    std::vector<Pending> others;
    for (Pending& call : pending) (call.comm == comm ? own : others).push_back(call);
    for (const Pending& call : own) {
      if (call.stream != own[0].stream)
        return refuse(kInvalidUsage, "the calls of a group are on several streams");
    }
    if (const Result result = launch(comm, own); result != kSuccess) return result;
    pending = std::move(others);
  }
  return kSuccess;
}

Result close_group() {
  if (--group.depth > 0) return kSuccess;
  const Result error = std::exchange(group.error, kSuccess);
  auto pending = std::exchange(group.pending, {});
  return error != kSuccess ? error : launch_group(std::move(pending));
}

// Calls.

Result check_buffers(Comm comm, const Item& item) {
  if (item.count == 0) return kSuccess;
  const bool at_root = item.root == comm->rank;
  const bool sends =
      item.function != Function::kRecv && (item.function != Function::kBroadcast || at_root);
  const bool receives =
      item.function != Function::kSend && (item.function != Function::kReduce || at_root);
  if (sends && item.send == nullptr) return refuse(kInvalidArgument, "sendbuff argument is NULL");
  if (receives && item.receive == nullptr)
    return refuse(kInvalidArgument, "recvbuff argument is NULL");
  return kSuccess;
}

// Also puts the factor of a user's operation into the item.
Result check_call(const char* function, Comm comm, Item& item) {
  if (const Result result = use_ready(function, comm); result != kSuccess) return result;
  const std::scoped_lock lock(comm->mutex);
  if (comm->finalized) return refuse(kInvalidUsage, "the communicator was finalized");
  const bool rooted = is_message(item.function) || item.function == Function::kBroadcast ||
                      item.function == Function::kReduce;
  if (rooted && (item.root < 0 || item.root >= comm->team->size()))
    return refuse(kInvalidArgument, "invalid root " + std::to_string(item.root));
  const int type = static_cast<int>(item.type);
  if (type < 0 || type >= fake::kTypeCount)
    return refuse(kInvalidArgument, "invalid type " + std::to_string(type));
  if (item.op < 0 || item.op >= kBuiltInOps) {
    const auto found = comm->ops.find(item.op);
    if (found == comm->ops.end())
      return refuse(kInvalidArgument, "reduction operation unknown to this communicator");
    if (found->second.type != item.type)
      return refuse(kInvalidArgument,
                    "Data type supplied to user-created ncclRedOp_t does not match");
    item.op = kSum;
    item.scaled = true;
    std::memcpy(item.factor, found->second.factor, sizeof item.factor);
  }
  return check_buffers(comm, item);
}

Result submit(const char* function, Comm comm, Item item, Stream stream) {
  if (const Result result = enter(function); result != kSuccess) return in_group(result);
  if (const Result result = check_call(function, comm, item); result != kSuccess)
    return in_group(result);
  ++group.depth;
  group.pending.push_back({function, comm, item, static_cast<driver::Stream>(stream)});
  return close_group();
}

Item item_of(Function function, const void* send, void* receive, std::size_t count, Type type,
             Op op = kSum, int root = -1) {
  Item item;
  item.function = function;
  item.send = static_cast<const std::byte*>(send);
  item.receive = static_cast<std::byte*>(receive);
  item.count = count;
  item.type = type;
  item.op = op;
  item.root = root;
  return item;
}

void wait_until_idle(Comm comm) {
  std::unique_lock lock(comm->mutex);
  comm->changed.wait(lock, [&] { return comm->outstanding == 0; });
}

}  // namespace

Result fake_get_version(int* value) {
  if (const Result result = enter("ncclGetVersion"); result != kSuccess) return result;
  if (value == nullptr) return kInvalidArgument;
  *value = version();
  return kSuccess;
}

Result fake_get_unique_id(UniqueId* id) {
  if (const Result result = enter("ncclGetUniqueId"); result != kSuccess) return result;
  if (id == nullptr) return refuse(kInvalidArgument, "out argument is NULL");
  const std::scoped_lock lock(state().mutex);
  *id = {};
  // Also other processes' tests must not have it: plugins meet by it.
  const std::uint64_t number = std::uint64_t{std::random_device{}()} << 32 | ++state().ids;
  std::memcpy(id->internal, &number, sizeof number);
  state().teams[std::string(id->internal, sizeof id->internal)];
  return kSuccess;
}

Result fake_comm_init(Comm* comm, int ranks, UniqueId id, int rank, Config* given) {
  if (const Result result = enter("ncclCommInitRankConfig"); result != kSuccess) return result;
  if (comm == nullptr) return refuse(kInvalidArgument, "newcomm argument is NULL");
  publish(comm, nullptr);
  driver::Context context = nullptr;
  driver::cuda_context_get(&context);
  if (context == nullptr) return refuse(kUnhandledCudaError, "no device is current");
  if (group.depth > 0) return refuse(kInvalidUsage, "the fake makes no communicators in groups");
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return refuse(kInvalidArgument,
                  "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(ranks));
  Config config;
  if (const Result result = read(given, &config); result != kSuccess) return result;
  std::shared_ptr<Team> team;
  if (const Result result = find_team(id, ranks, &team); result != kSuccess) return result;
  return start(make_comm(config, rank, std::move(team)), comm, join);
}

Result fake_comm_split(Comm comm, int color, int key, Comm* child, Config* given) {
  if (const Result result = enter("ncclCommSplit"); result != kSuccess) return result;
  if (const Result result = use_ready("ncclCommSplit", comm); result != kSuccess) return result;
  if (child == nullptr) return refuse(kInvalidArgument, "newcomm argument is NULL");
  *child = nullptr;
  if (color < 0 && color != kNoColor)
    return refuse(kInvalidArgument, "color must be greater or equal to 0");
  Config config = comm->config;
  if (given != nullptr) {
    if (const Result result = read(given, &config); result != kSuccess) return result;
  }
  const std::shared_ptr<Team> parent = comm->team;
  const int rank = comm->rank;
  std::uint64_t number = 0;
  {
    const std::scoped_lock lock(comm->mutex);
    number = comm->splits++;
  }
  const auto split = [=](std::shared_ptr<Team>* team, int* child_rank) {
    if (parent->split(rank, number, color, key, team, child_rank)) return kSuccess;
    return refuse(kInternalError, "the communicator was aborted");
  };
  if (color < 0) {
    std::shared_ptr<Team> none;
    int ignored = 0;
    return split(&none, &ignored);
  }
  const Current current(comm->context);
  return start(make_comm(config), child, [split](Comm own) {
    std::shared_ptr<Team> team;
    int child_rank = 0;
    const Result result = split(&team, &child_rank);
    const std::scoped_lock lock(own->mutex);
    own->team = std::move(team);
    own->rank = child_rank;
    return result;
  });
}

Result fake_comm_rank(Comm comm, int* rank) {
  if (const Result result = use_ready("ncclCommUserRank", comm); result != kSuccess) return result;
  if (rank == nullptr) return refuse(kInvalidArgument, "rank argument is NULL");
  *rank = comm->rank;
  return kSuccess;
}

Result fake_comm_ranks(Comm comm, int* ranks) {
  if (const Result result = use_ready("ncclCommCount", comm); result != kSuccess) return result;
  if (ranks == nullptr) return refuse(kInvalidArgument, "count argument is NULL");
  *ranks = comm->team->size();
  return kSuccess;
}

Result fake_comm_finalize(Comm comm) {
  if (const Result result = enter("ncclCommFinalize"); result != kSuccess) return result;
  if (comm == nullptr) return kSuccess;
  if (const Result result = use_ready("ncclCommFinalize", comm); result != kSuccess) return result;
  {
    const std::scoped_lock lock(comm->mutex);
    if (comm->finalized) return refuse(kInvalidArgument, "the communicator was finalized before");
    comm->finalized = true;
    if (!comm->blocking()) comm->state = kInProgress;
  }
  if (comm->blocking()) {
    wait_until_idle(comm);
    return kSuccess;
  }
  std::thread([comm] {
    wait_until_idle(comm);
    const std::scoped_lock lock(comm->mutex);
    if (comm->state == kInProgress) comm->state = kSuccess;
  }).detach();
  return kInProgress;
}

Result fake_comm_destroy(Comm comm) {
  if (const Result result = enter("ncclCommDestroy"); result != kSuccess) return result;
  if (comm == nullptr) return kSuccess;
  if (const Result result = use_ready("ncclCommDestroy", comm); result != kSuccess) return result;
  wait_until_idle(comm);
  end(comm);
  return kSuccess;
}

// Waits for what runs to notice; what is still on streams ends when its turn comes.
Result fake_comm_abort(Comm comm) {
  if (const Result result = enter("ncclCommAbort"); result != kSuccess) return result;
  if (comm == nullptr) return kSuccess;
  if (const Result result = use("ncclCommAbort", comm); result != kSuccess) return result;
  std::shared_ptr<Team> team;
  {
    const std::scoped_lock lock(comm->mutex);
    if (comm->aborted) misuse("ncclCommAbort", "a communicator is aborted twice.");
    comm->aborted = true;
    team = comm->team;
  }
  if (team) team->abort(comm->rank);
  {
    std::unique_lock lock(comm->mutex);
    comm->changed.wait(lock, [&] { return !comm->initializing && comm->running == 0; });
  }
  end(comm);
  return kSuccess;
}

Result fake_comm_error(Comm comm, Result* error) {
  if (const Result result = enter("ncclCommGetAsyncError"); result != kSuccess) return result;
  if (const Result result = use("ncclCommGetAsyncError", comm); result != kSuccess) return result;
  if (error == nullptr) return refuse(kInvalidArgument, "asyncError argument is NULL");
  const std::scoped_lock lock(comm->mutex);
  *error = comm->state;
  return kSuccess;
}

Result fake_group_start() {
  if (const Result result = enter("ncclGroupStart"); result != kSuccess) return result;
  ++group.depth;
  return kSuccess;
}

Result fake_group_end() {
  const Result injected = enter("ncclGroupEnd");
  if (group.depth == 0) return refuse(kInvalidUsage, "ncclGroupEnd: not in a group call.");
  in_group(injected);
  return close_group();
}

Result fake_all_reduce(const void* send, void* receive, std::size_t count, Type type, Op op,
                       Comm comm, Stream stream) {
  return submit("ncclAllReduce", comm,
                item_of(Function::kAllReduce, send, receive, count, type, op), stream);
}

Result fake_broadcast(const void* send, void* receive, std::size_t count, Type type, int root,
                      Comm comm, Stream stream) {
  return submit("ncclBroadcast", comm,
                item_of(Function::kBroadcast, send, receive, count, type, kSum, root), stream);
}

Result fake_reduce(const void* send, void* receive, std::size_t count, Type type, Op op, int root,
                   Comm comm, Stream stream) {
  return submit("ncclReduce", comm,
                item_of(Function::kReduce, send, receive, count, type, op, root), stream);
}

Result fake_all_gather(const void* send, void* receive, std::size_t count, Type type, Comm comm,
                       Stream stream) {
  return submit("ncclAllGather", comm, item_of(Function::kAllGather, send, receive, count, type),
                stream);
}

Result fake_reduce_scatter(const void* send, void* receive, std::size_t count, Type type, Op op,
                           Comm comm, Stream stream) {
  return submit("ncclReduceScatter", comm,
                item_of(Function::kReduceScatter, send, receive, count, type, op), stream);
}

Result fake_send(const void* send, std::size_t count, Type type, int peer, Comm comm,
                 Stream stream) {
  return submit("ncclSend", comm, item_of(Function::kSend, send, nullptr, count, type, kSum, peer),
                stream);
}

Result fake_recv(void* receive, std::size_t count, Type type, int peer, Comm comm, Stream stream) {
  return submit("ncclRecv", comm,
                item_of(Function::kRecv, nullptr, receive, count, type, kSum, peer), stream);
}

Result fake_redop_create_premul_sum(Op* op, void* scalar, Type type, int residence, Comm comm) {
  if (const Result result = enter("ncclRedOpCreatePreMulSum"); result != kSuccess) return result;
  if (const Result result = use_ready("ncclRedOpCreatePreMulSum", comm); result != kSuccess)
    return result;
  if (op == nullptr || scalar == nullptr) return refuse(kInvalidArgument, "an argument is NULL");
  if (residence != kScalarOnHost)
    return refuse(kInvalidArgument, "the fake takes scalars of the host alone");
  const int index = static_cast<int>(type);
  if (index < 0 || index >= fake::kTypeCount) return refuse(kInternalError, "invalid type");
  {
    const std::scoped_lock lock(state().mutex);
    *op = state().next_op++;
  }
  UserOp made{type, {}};
  std::memcpy(made.factor, scalar, fake::bytes_of(type));
  const std::scoped_lock lock(comm->mutex);
  comm->ops.emplace(*op, made);
  return kSuccess;
}

Result fake_redop_destroy(Op op, Comm comm) {
  if (const Result result = enter("ncclRedOpDestroy"); result != kSuccess) return result;
  if (const Result result = use("ncclRedOpDestroy", comm); result != kSuccess) return result;
  const std::scoped_lock lock(comm->mutex);
  if (comm->ops.erase(op) == 1) return kSuccess;
  return refuse(kInvalidArgument, "reduction operation unknown to this communicator");
}

FAKE_EXPORT const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

FAKE_EXPORT const char* ncclGetLastError(Comm) { return last_error.c_str(); }

// Control.

namespace {

// Needs the communicator's mutex.
bool is_meant(const Comm_& comm, const char* name, int rank) {
  return (name == nullptr || comm.name == name) && (rank == -1 || comm.rank == rank);
}

// Needs the state's mutex.
Comm find_newest(const char* name, int rank) {
  const auto& comms = state().comms;
  for (auto comm = comms.rbegin(); comm != comms.rend(); ++comm) {
    const std::scoped_lock lock((*comm)->mutex);
    if (is_meant(**comm, name, rank)) return comm->get();
  }
  return nullptr;
}

}  // namespace

}  // namespace accl::nccl

using namespace accl::nccl;

FAKE_EXPORT void fake_nccl_fail_next(const char* function, int result) {
  const std::scoped_lock lock(state().mutex);
  state().failures.push_back({function, result});
}

FAKE_EXPORT void fake_nccl_fail_next_here(const char* function, int result) {
  failures_here.push_back({function, result});
}

FAKE_EXPORT long fake_nccl_calls(const char* function) {
  const std::scoped_lock lock(state().mutex);
  const auto found = state().calls.find(std::string_view(function));
  return found == state().calls.end() ? 0 : found->second;
}

FAKE_EXPORT int fake_nccl_set_async_error(const char* name, int rank, int result) {
  const std::scoped_lock lock(state().mutex);
  int count = 0;
  for (const auto& comm : state().comms) {
    const std::scoped_lock own(comm->mutex);
    if (comm->ended || !is_meant(*comm, name, rank)) continue;
    comm->state = result;
    ++count;
  }
  return count;
}

FAKE_EXPORT int fake_nccl_last_config(const char* name, int rank, Config* config) {
  const std::scoped_lock lock(state().mutex);
  const Comm comm = find_newest(name, rank);
  if (comm == nullptr) return 0;
  *config = comm->config;
  return 1;
}

FAKE_EXPORT void fake_nccl_end_waiting_inits() {
  const std::scoped_lock lock(state().mutex);
  for (const auto& comm : state().comms) {
    const std::scoped_lock own(comm->mutex);
    if (comm->team) comm->team->end_waiting();
  }
}

FAKE_EXPORT std::size_t fake_nccl_log(const char* name, int rank, char* text, std::size_t size) {
  const std::scoped_lock lock(state().mutex);
  const Comm comm = find_newest(name, rank);
  const std::string log = comm == nullptr ? "" : [&] {
    const std::scoped_lock own(comm->mutex);
    return comm->log;
  }();
  if (size != 0) text[log.copy(text, size - 1)] = '\0';
  return log.size();
}

FAKE_EXPORT long fake_nccl_mismatches() { return Team::mismatches(); }

FAKE_EXPORT long fake_nccl_live_communicators() {
  const std::scoped_lock lock(state().mutex);
  return std::count_if(state().comms.begin(), state().comms.end(), [](const auto& comm) {
    const std::scoped_lock own(comm->mutex);
    return !comm->ended;
  });
}
