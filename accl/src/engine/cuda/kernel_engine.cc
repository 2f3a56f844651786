#include "engine/cuda/kernel_engine.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "accl/error.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/cuda/image.h"
#include "engine/cuda/launch_plan.h"

namespace accl::cuda {

namespace {

const driver::Table& gpu() { return driver::table(); }

constexpr Milliseconds kDefaultDeadline{30 * 60 * 1000};

using Functions = std::array<driver::Function, kKernelCount>;

// Loaded once for each context, and kept: a module may be in use by graphs.
const Functions& functions(driver::Context context) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<driver::Context, Functions>;
  const std::scoped_lock lock(mutex);
  if (const auto found = loaded.find(context); found != loaded.end()) return found->second;
  driver::Module module = nullptr;
  driver::check(gpu().module_load(&module, kernel_image()), "Loading the CUDA kernels");
  Functions made{};
  for (int i = 0; i < kKernelCount; ++i) {
    driver::check(gpu().module_function(&made[static_cast<std::size_t>(i)], module, kernel_name(i)),
                  kernel_name(i));
  }
  return loaded[context] = made;
}

// Tells processes apart, whatever namespaces they are in.
std::string process_id() {
  static std::mutex mutex;
  static pid_t process = 0;
  static auto& id = *new std::string;
  const std::scoped_lock lock(mutex);
  if (process == ::getpid()) return id;  // a forked child needs one of its own
  process = ::getpid();
  std::random_device source;
  return id = concat(process, "-", source(), "-", source(), "-", source());
}

std::string hex(const void* data, std::size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool unhex(std::string_view text, void* data, std::size_t bytes) {
  if (text.size() != 2 * bytes) return false;
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < bytes; ++i) {
    static_cast<unsigned char*>(data)[i] =
        static_cast<unsigned char>(value(text[2 * i]) << 4 | value(text[2 * i + 1]));
  }
  return true;
}

// What a rank tells the others: its process, the region's address in it, its handle and its GPU.
struct Address {
  std::string process;
  driver::Pointer region = 0;
  driver::IpcHandle handle{};
  driver::Uuid gpu{};

  std::string text() const {
    return concat(process, " ", hex(&region, sizeof region), " ", hex(&handle, sizeof handle), " ",
                  hex(&gpu, sizeof gpu));
  }

  static Address from(const std::string& text, int rank) {
    std::istringstream stream(text);
    Address address;
    std::string region;
    std::string handle;
    std::string gpu;
    stream >> address.process >> region >> handle >> gpu;
    if (!unhex(region, &address.region, sizeof address.region) ||
        !unhex(handle, &address.handle, sizeof address.handle) ||
        !unhex(gpu, &address.gpu, sizeof address.gpu)) {
      throw SystemError(concat("rank ", rank, " told no readable address of its GPU memory"), 0);
    }
    return address;
  }
};

bool same(const driver::Uuid& a, const driver::Uuid& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Of the GPUs that this process sees; -1 where the peer's is not among them.
int ordinal_of(const driver::Uuid& wanted) {
  int count = 0;
  driver::check(gpu().device_count(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    driver::Device device = 0;
    driver::Uuid uuid{};
    driver::check(gpu().device_get(&device, i), "cuDeviceGet");
    driver::check(gpu().device_uuid(&uuid, device), "cuDeviceGetUuid");
    if (same(uuid, wanted)) return i;
  }
  return -1;
}

class MappedEngine final : public KernelEngine {
 public:
  MappedEngine(int rank, int ranks, int device)
      : rank_(rank), ranks_(ranks), device_(device), context_(driver::primary_context(device)) {
    const driver::Current current(context_);
    functions_ = &functions(context_);
    driver::check(gpu().memory_allocate(&own_.region, kRegionBytes), "cuMemAlloc");
    try {
      driver::check(gpu().memory_set(own_.region, 0, kRegionBytes), "cuMemsetD8");
      // That only queued it; once peers know the address they may write.
      driver::check(gpu().stream_synchronize(nullptr), "cuStreamSynchronize");
      driver::check(gpu().ipc_get(&own_.handle, own_.region), "cuIpcGetMemHandle");
      own_.process = process_id();
      driver::Device handle = 0;
      driver::check(gpu().device_get(&handle, device), "cuDeviceGet");
      driver::check(gpu().device_uuid(&own_.gpu, handle), "cuDeviceGetUuid");
      void* control = nullptr;
      driver::check(gpu().host_allocate(&control, sizeof(Control),
                                        driver::kHostPortable | driver::kHostMapped),
                    "cuMemHostAlloc");
      control_ = new (control) Control{};
      set_deadline(kDefaultDeadline);
      driver::check(gpu().host_device_pointer(&control_on_gpu_, control, 0),
                    "cuMemHostGetDevicePointer");
    } catch (...) {
      release();
      throw;
    }
  }

  ~MappedEngine() override {
    try {
      const driver::Current current(context_);
      release();
    } catch (...) {  // the driver is gone, and the memory with it
    }
  }

  std::string address() const override { return own_.text(); }

  void connect(const std::vector<std::string>& addresses) override {
    if (addresses.size() != static_cast<std::size_t>(ranks_))
      throw InternalError(concat(addresses.size(), " addresses for ", ranks_, " ranks."));
    const driver::Current current(context_);
    for (int r = 0; r < ranks_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      const Address peer = Address::from(addresses[index], r);
      regions_[index] = r == rank_ ? own_.region : map(peer, r);
    }
    connected_ = true;
  }

  bool takes(const KernelCall& call) const noexcept override {
    return connected_ && plan_launch(call, rank_, ranks_).kernel >= 0;
  }

  void launch(const KernelCall& call, driver::Stream stream) override {
    LaunchPlan plan = plan_launch(call, rank_, ranks_);
    if (plan.kernel < 0 || !connected_)
      throw InternalError(concat("No CUDA kernel for ", name_of(call.collective), " of ",
                                 name_of(call.dtype), "."));
    if (plan.blocks == 0) return;  // empty, and so on every rank
    Parameters& p = plan.parameters;
    for (std::size_t r = 0; r < regions_.size(); ++r)
      p.regions[r] = reinterpret_cast<unsigned char*>(regions_[r]);
    p.control = reinterpret_cast<Control*>(control_on_gpu_);
    void* arguments[] = {&p};
    driver::check(gpu().launch((*functions_)[static_cast<std::size_t>(plan.kernel)], plan.blocks, 1,
                               1, plan.threads, 1, 1, 0, stream, arguments, nullptr),
                  kernel_name(plan.kernel));
  }

  void abort() noexcept override {
    std::atomic_ref(control_->abort).store(1, std::memory_order_relaxed);
  }

  void set_deadline(Milliseconds deadline) noexcept override {
    const auto ms = static_cast<std::uint64_t>(deadline.count());
    const std::uint64_t most = ~std::uint64_t{0} / 1'000'000;
    std::atomic_ref(control_->deadline_ns)
        .store((ms < most ? ms : most) * 1'000'000, std::memory_order_relaxed);
  }

  bool gave_up() const noexcept override {
    return std::atomic_ref(control_->gave_up).load(std::memory_order_relaxed) != 0;
  }

 private:
  driver::Pointer map(const Address& peer, int r) {
    if (!same(peer.gpu, own_.gpu)) require_access(peer, r);
    if (peer.process == own_.process) return region_of_thread(peer, r);
    driver::Pointer mapped = 0;
    driver::check(gpu().ipc_open(&mapped, peer.handle, driver::kIpcLazyPeerAccess),
                  concat("Mapping the GPU memory of rank ", r, " (cuIpcOpenMemHandle)").c_str());
    mapped_.push_back(mapped);
    return mapped;
  }

  // A handle cannot be opened in its own process, and only opening it lets one GPU reach another.
  driver::Pointer region_of_thread(const Address& peer, int r) const {
    if (same(peer.gpu, own_.gpu)) return peer.region;
    throw SystemError(concat("rank ", r,
                             " is in this process, but on another GPU; run one process "
                             "a GPU to have kernels between them"),
                      0);
  }

  void require_access(const Address& peer, int r) const {
    const int ordinal = ordinal_of(peer.gpu);
    if (ordinal < 0) return;  // not visible here; mapping it tells
    driver::Device own = 0;
    driver::Device other = 0;
    int can = 0;
    driver::check(gpu().device_get(&own, device_), "cuDeviceGet");
    driver::check(gpu().device_get(&other, ordinal), "cuDeviceGet");
    driver::check(gpu().can_access_peer(&can, own, other), "cuDeviceCanAccessPeer");
    if (can == 0) {
      throw SystemError(concat("device ", device_, " cannot reach the memory of rank ", r,
                               "'s GPU, device ", ordinal),
                        0);
    }
  }

  void release() noexcept {
    for (const driver::Pointer mapped : mapped_) gpu().ipc_close(mapped);
    mapped_.clear();
    if (own_.region != 0) gpu().memory_free(std::exchange(own_.region, 0));
    if (control_ != nullptr) gpu().host_free(std::exchange(control_, nullptr));
  }

  const int rank_;
  const int ranks_;
  const int device_;
  const driver::Context context_;
  const Functions* functions_ = nullptr;
  Address own_;
  Control* control_ = nullptr;
  driver::Pointer control_on_gpu_ = 0;
  std::vector<driver::Pointer> mapped_;
  std::array<driver::Pointer, kMostRanks> regions_{};
  bool connected_ = false;
};

}  // namespace

bool KernelEngine::built_in(std::string* why) noexcept {
  if (kernel_image() != nullptr) return true;
  if (why != nullptr)
    *why = "ACCL-N was built without a CUDA compiler (nvcc), so it has no kernels of its own";
  return false;
}

std::unique_ptr<KernelEngine> KernelEngine::open(int rank, int ranks, int device) {
  std::string why;
  if (!built_in(&why)) throw SystemError(why, 0);
  return std::make_unique<MappedEngine>(rank, ranks, device);
}

}  // namespace accl::cuda
