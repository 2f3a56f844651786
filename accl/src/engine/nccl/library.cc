#include "engine/nccl/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <optional>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/log.h"
#include "base/text.h"

namespace accl::nccl {

namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr int kOldest = 22400;
constexpr int kNewest = 23299;

[[noreturn]] void refuse(const std::string& why) { throw SystemError(why, 0); }

std::string loader_error() {
  const char* error = dlerror();
  return error == nullptr ? "no reason given" : error;
}

// <site-packages>/nvidia/nccl/lib of the <site-packages>/accl_py/lib that this code lies in.
std::string wheel_path() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&wheel_path), &own) == 0 || own.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const auto packages =
      std::filesystem::absolute(own.dli_fname, ignored).parent_path().parent_path().parent_path();
  const auto path = packages / "nvidia" / "nccl" / "lib" / kName;
  return std::filesystem::exists(path, ignored) ? path.string() : std::string{};
}

void* open_library() {
  if (void* held = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return held;
  const std::string& given = environment().nccl_library;
  if (!given.empty()) {
    if (void* opened = dlopen(given.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    refuse(concat("NCCL cannot be loaded from ACCL_NCCL_LIBRARY: ", loader_error(), "."));
  }
  std::string tried;
  for (const std::string& path : {wheel_path(), std::string(kName)}) {
    if (path.empty()) continue;
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    tried += concat(tried.empty() ? "" : "; ", loader_error());
  }
  refuse(concat("NCCL cannot be loaded (", tried,
                "); install the wheel nvidia-nccl-cu13 (or -cu12), or set ACCL_NCCL_LIBRARY to the "
                "path of libnccl.so.2."));
}

void* find(void* library, const char* symbol, const std::string& path) {
  if (void* address = dlsym(library, symbol)) return address;
  refuse(concat(path, " has no ", symbol, "; expected NCCL 2.24 to 2.32."));
}

std::string path_of(void* symbol) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return kName;
  return info.dli_fname;
}

Library load() {
  void* handle = open_library();
  Library found;
  found.path = path_of(dlsym(handle, "ncclGetVersion"));
#define ACCL_NCCL_LOAD(member, symbol, parameters) \
  found.api.member = reinterpret_cast<decltype(found.api.member)>(find(handle, symbol, found.path));
  ACCL_NCCL_FUNCTIONS(ACCL_NCCL_LOAD)
#undef ACCL_NCCL_LOAD
  found.api.error_text = reinterpret_cast<decltype(found.api.error_text)>(
      find(handle, "ncclGetErrorString", found.path));
  found.api.last_error = reinterpret_cast<decltype(found.api.last_error)>(
      find(handle, "ncclGetLastError", found.path));
  if (found.api.get_version(&found.version) != kSuccess)
    refuse(concat(found.path, " does not tell its version; expected NCCL 2.24 to 2.32."));
  if (found.version < kOldest || found.version >= 30000) {
    refuse(concat(found.path, " is NCCL ", version_text(found.version),
                  ", expected 2.24 to 2.32; set ACCL_NCCL_LIBRARY to another one."));
  }
  if (found.version > kNewest) {
    log(LogLevel::kWarn, concat(found.path, " is NCCL ", version_text(found.version),
                                ", newer than what ACCL-N knows (2.24 to 2.32); trying."));
  }
  return found;
}

struct Loaded {
  std::optional<Library> library;
  std::string fault;
};

const Loaded& loaded() {
  static const auto* const result = [] {
    auto* made = new Loaded;
    try {
      made->library = load();
    } catch (const Error& error) {
      made->fault = error.what();
    }
    return made;
  }();
  return *result;
}

}  // namespace

const Library& library() {
  const Loaded& found = loaded();
  if (!found.library) refuse(found.fault);
  return *found.library;
}

std::string version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace accl::nccl
