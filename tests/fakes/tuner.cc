#include "tuner.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "plugin/nccl_tuner_abi.h"

namespace accl::fake {

namespace {

using namespace accl::plugin;

constexpr int kAlgorithms = 7;
constexpr int kProtocols = 3;
constexpr const char* kAlgorithmNames[] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
constexpr const char* kProtocolNames[] = {"ll", "ll128", "simple"};

struct Loaded {
  const NcclTunerV4* v4 = nullptr;
  const NcclTunerV5* v5 = nullptr;
  const NcclTunerV6* v6 = nullptr;

  bool any() const { return v4 != nullptr || v5 != nullptr || v6 != nullptr; }
};

Loaded load(int version) {
  Loaded loaded;
  const char* name = std::getenv("NCCL_TUNER_PLUGIN");
  if (name == nullptr || std::strcmp(name, "none") == 0) return loaded;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr && std::strchr(name, '/') == nullptr) {
    const std::string file = std::string("libnccl-tuner-") + name + ".so";
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return loaded;
  const auto find = [&](const char* symbol) { return dlsym(library, symbol); };
  if (version >= 23000) loaded.v6 = static_cast<const NcclTunerV6*>(find("ncclTunerPlugin_v6"));
  if (!loaded.any() && version >= 22800)
    loaded.v5 = static_cast<const NcclTunerV5*>(find("ncclTunerPlugin_v5"));
  if (!loaded.any()) loaded.v4 = static_cast<const NcclTunerV4*>(find("ncclTunerPlugin_v4"));
  return loaded;
}

// NCCL tries once a process, at the first communicator.
const Loaded& plugin_of(int version) {
  static const Loaded loaded = load(version);
  return loaded;
}

void write_log(int level, unsigned long, const char*, int, const char* format, ...) {
  const char* wanted = std::getenv("NCCL_DEBUG");
  if (wanted == nullptr || (level == kNcclLogInfo && std::strcmp(wanted, "INFO") != 0)) return;
  char text[1024];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "NCCL %s %s\n", level == kNcclLogWarn ? "WARN" : "INFO", text);
}

int number_of(Function function) {
  switch (function) {
    case Function::kBroadcast:
      return kNcclBroadcast;
    case Function::kReduce:
      return kNcclReduce;
    case Function::kAllGather:
      return kNcclAllGather;
    case Function::kReduceScatter:
      return kNcclReduceScatter;
    case Function::kAllReduce:
      return kNcclAllReduce;
    case Function::kSend:
    case Function::kRecv:
      break;
  }
  return -1;
}

using Table = float[kAlgorithms][kProtocols];

// What two GPUs without NVLink have: rings with ll and simple, and trees for all_reduce.
void fill(Table& table, Function function, std::size_t bytes) {
  for (auto& row : table) {
    for (float& cost : row) cost = kNcclIgnored;
  }
  const auto size = static_cast<float>(bytes);
  table[kNcclRing][kNcclLl] = 6.6F + size / 1e3F;
  table[kNcclRing][kNcclSimple] = 8.4F + size / 4e3F;
  if (function != Function::kAllReduce) return;
  table[kNcclTree][kNcclLl] = 6.8F + size / 0.9e3F;
  table[kNcclTree][kNcclSimple] = 8.6F + size / 3.6e3F;
}

}  // namespace

nccl::Result Tuner::start(int nccl_version, std::uint64_t communicator, int ranks) {
  const Loaded& plugin = plugin_of(nccl_version);
  const auto size = static_cast<std::size_t>(ranks);
  NcclNvlDomainInfo domains{1, ranks, ranks};
  alignas(double) char constants[8192] = {};
  auto* given = reinterpret_cast<NcclTunerConstants*>(constants);
  NcclResult result = NcclResult::kSuccess;
  if (plugin.v6 != nullptr)
    result = plugin.v6->init(&context_, communicator, size, 1, write_log, &domains, given);
  else if (plugin.v5 != nullptr)
    result = plugin.v5->init(&context_, communicator, size, 1, write_log, &domains, given);
  else if (plugin.v4 != nullptr)
    result = plugin.v4->init(size, 1, write_log, &context_);
  started_ = plugin.any() && result == NcclResult::kSuccess;
  return static_cast<nccl::Result>(result);
}

Tuner::~Tuner() {
  if (!started_) return;
  const Loaded& plugin = plugin_of(0);
  if (plugin.v6 != nullptr) plugin.v6->finalize(context_);
  if (plugin.v5 != nullptr) plugin.v5->finalize(context_);
  if (plugin.v4 != nullptr) plugin.v4->destroy(context_);
}

nccl::Result Tuner::ask(Function function, std::size_t bytes, std::string* chosen) {
  chosen->clear();
  const int number = number_of(function);
  if (!started_ || number < 0) return nccl::kSuccess;
  const Loaded& plugin = plugin_of(0);
  const NcclGetCollInfo get = plugin.v6 != nullptr   ? plugin.v6->get_coll_info
                              : plugin.v5 != nullptr ? plugin.v5->get_coll_info
                                                     : plugin.v4->get_coll_info;
  Table table;
  fill(table, function, bytes);
  int channels = 0;
  const NcclResult result = get(context_, number, bytes, 1, reinterpret_cast<float**>(table),
                                kAlgorithms, kProtocols, 0, &channels);
  if (result != NcclResult::kSuccess) return static_cast<nccl::Result>(result);
  int algorithm = -1;
  int protocol = -1;
  float least = std::numeric_limits<float>::infinity();
  for (int a = 0; a < kAlgorithms; ++a) {
    for (int p = 0; p < kProtocols; ++p) {
      if (table[a][p] < 0 || table[a][p] >= least) continue;
      least = table[a][p];
      algorithm = a;
      protocol = p;
    }
  }
  if (algorithm < 0) return nccl::kInternalError;  // as NCCL: no algorithm is left
  *chosen = std::string(" algorithm=") + kAlgorithmNames[algorithm] +
            " protocol=" + kProtocolNames[protocol] + " channels=" + std::to_string(channels);
  if (plugin.v6 == nullptr) return nccl::kSuccess;
  std::size_t chunk = std::size_t{512} << 10;
  plugin.v6->get_chunk_size(context_, number, bytes, algorithm, protocol, channels, &chunk);
  *chosen += " chunk=" + std::to_string(chunk);
  return nccl::kSuccess;
}

}  // namespace accl::fake
