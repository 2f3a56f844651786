// What NCCL and the control interface see. No exception leaves; but for ranks whose rules differ,
// no call fails.
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugin/accl_tuner.h"
#include "plugin/tuner.h"

#define ACCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace accl::plugin {

namespace {

// The communicators that live. Who is finalized twice, or never was one of ours, is not found.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Tuner>> live;
  // Ranks that were refused stay on their board until the process ends, so that those who come
  // later hear the same verdict.
  std::vector<std::unique_ptr<Tuner>> refused;
};
constexpr std::size_t kMostRefused = 64;

Registry& registry() {
  static auto& instance = *new Registry;  // outlives NCCL's own end of the process
  return instance;
}

// At the end of the process, or the name of a board would stay until somebody cleans up.
[[gnu::destructor]] void forget_refused() {
  const std::scoped_lock lock(registry().mutex);
  registry().refused.clear();
}

NcclResult init(const Tuner::Shape& shape, NcclLogger logger, void** context) noexcept {
  if (context == nullptr) return NcclResult::kSuccess;
  *context = nullptr;
  try {
    const SourcePtr source = current_source();
    auto tuner = std::make_unique<Tuner>(shape, logger, source);
    const bool agreed = tuner->agree();
    const std::scoped_lock lock(registry().mutex);
    if (!agreed) {
      if (registry().refused.size() < kMostRefused) registry().refused.push_back(std::move(tuner));
      return NcclResult::kInvalidUsage;
    }
    Tuner* const made = tuner.get();
    registry().live.emplace(made, std::move(tuner));
    *context = made;
    ++source->communicators;
    count_init();
  } catch (const std::exception& error) {
    // Without a context, every later call leaves NCCL alone.
    Voice(logger).warn(std::string("ACCL-N tuner: not in use, NCCL chooses by itself: ") +
                       error.what());
  }
  return NcclResult::kSuccess;
}

NcclResult init_v4(std::size_t ranks, std::size_t nodes, NcclLogger logger, void** context) {
  return init({4, std::nullopt, ranks, nodes}, logger, context);
}

template <int version>
NcclResult init_v5(void** context, std::uint64_t communicator, std::size_t ranks, std::size_t nodes,
                   NcclLogger logger, NcclNvlDomainInfo*, NcclTunerConstants*) {
  return init({version, communicator, ranks, nodes}, logger, context);
}

NcclResult get_coll_info(void* context, int function, std::size_t bytes, int pipe_ops,
                         float** table, int algorithms, int protocols, int registered,
                         int* channels) {
  if (context == nullptr) return NcclResult::kSuccess;
  try {
    const CostTable flat{reinterpret_cast<float*>(table), algorithms, protocols};
    static_cast<Tuner*>(context)->answer({function, bytes, pipe_ops, flat, registered, channels});
  } catch (const std::exception&) {
    // No memory for a message: the table is whole either way.
  }
  return NcclResult::kSuccess;
}

NcclResult finalize(void* context) {
  std::unique_ptr<Tuner> tuner;
  {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().live.find(context);
    if (found == registry().live.end()) return NcclResult::kSuccess;
    tuner = std::move(found->second);
    registry().live.erase(found);
  }
  count_finalize();
  return NcclResult::kSuccess;
}

NcclResult get_chunk_size(void* context, int function, std::size_t, int algorithm, int protocol,
                          int, std::size_t* chunk) {
  if (context == nullptr) return NcclResult::kSuccess;
  static_cast<Tuner*>(context)->answer_chunk(function, algorithm, protocol, chunk);
  return NcclResult::kSuccess;
}

thread_local std::string last_error;

template <class Call>
int guarded(Call call) noexcept {
  try {
    last_error.clear();
    call();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

}  // namespace

}  // namespace accl::plugin

namespace plugin = accl::plugin;

ACCL_EXPORT const plugin::NcclTunerV4 ncclTunerPlugin_v4 = {
    "ACCL-N", plugin::init_v4, plugin::get_coll_info, plugin::finalize};
ACCL_EXPORT const plugin::NcclTunerV5 ncclTunerPlugin_v5 = {
    "ACCL-N", plugin::init_v5<5>, plugin::get_coll_info, plugin::finalize};
ACCL_EXPORT const plugin::NcclTunerV6 ncclTunerPlugin_v6 = {
    "ACCL-N", plugin::init_v5<6>, plugin::get_coll_info, plugin::finalize, plugin::get_chunk_size};

ACCL_EXPORT int accl_tuner_force(const char* collective, const char* algorithm,
                                 const char* protocol, int channels, size_t chunk_bytes) {
  return plugin::guarded(
      [&] { plugin::force(collective, algorithm, protocol, channels, chunk_bytes); });
}

ACCL_EXPORT void accl_tuner_clear(void) { plugin::clear_forced(); }

ACCL_EXPORT int accl_tuner_give_rules(const char* text, const char* name, int everywhere) {
  return plugin::guarded(
      [&] { plugin::give_rules(text, name == nullptr ? "given rules" : name, everywhere != 0); });
}

ACCL_EXPORT uint64_t accl_tuner_taken(void) { return plugin::taken_from_thread(); }

ACCL_EXPORT void accl_tuner_reload(void) {
  plugin::guarded([] { plugin::reload_source(); });
}

ACCL_EXPORT int accl_tuner_report(struct accl_tuner_last* last) {
  return plugin::guarded([&] {
    if (plugin::report(last)) return;
    throw std::runtime_error(
        "accl_tuner_report wants a structure whose size is the plugin's; its header is of another "
        "version, or size was not set.");
  });
}

ACCL_EXPORT const char* accl_tuner_error(void) { return plugin::last_error.c_str(); }
