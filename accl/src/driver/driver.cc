#include "driver/driver.h"

#include <dlfcn.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "accl/environment.h"
#include "accl/error.h"
#include "base/text.h"

namespace accl::driver {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

[[noreturn]] void refuse(const std::string& why) { throw SystemError(why, 0); }

void* open_library() {
  const std::string& given = environment().cuda_library;
  const char* path = given.empty() ? kLibrary : given.c_str();
  if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = dlerror();
  refuse(concat("The CUDA driver cannot be loaded (", error == nullptr ? path : error,
                "); install NVIDIA's driver, or use CPU tensors."));
}

void* find(void* library, const char* symbol) {
  if (void* address = dlsym(library, symbol)) return address;
  refuse(concat("The CUDA driver has no ", symbol,
                "; ACCL-N needs a driver of CUDA 12 or later: update it."));
}

Table load() {
  void* library = open_library();
  Table table;
#define ACCL_DRIVER_LOAD(member, symbol, parameters) \
  table.member = reinterpret_cast<decltype(table.member)>(find(library, symbol));
  ACCL_DRIVER_FUNCTIONS(ACCL_DRIVER_LOAD)
#undef ACCL_DRIVER_LOAD
  const Result started = table.init(0);
  if (started != kSuccess) {
    const char* text = nullptr;
    table.error_text(started, &text);
    refuse(concat("The CUDA driver does not start: ", text == nullptr ? "unknown error" : text,
                  " (", started, "); is a GPU visible to this process?"));
  }
  return table;
}

struct Loaded {
  std::optional<Table> table;
  std::string fault;
};

// Never destroyed: other threads may still ask while the process ends.
const Loaded& loaded() {
  static const auto* const result = [] {
    auto* made = new Loaded;
    try {
      made->table = load();
    } catch (const Error& error) {
      made->fault = error.what();
    }
    return made;
  }();
  return *result;
}

}  // namespace

const Table& table() {
  const Loaded& found = loaded();
  if (!found.table) refuse(found.fault);
  return *found.table;
}

std::string describe(Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  table().error_name(result, &name);
  table().error_text(result, &text);
  return concat(name == nullptr ? "unknown error" : name, " (", result, "), ",
                text == nullptr ? "no text" : text);
}

void check(Result result, const char* what) {
  if (result == kSuccess) return;
  throw SystemError(concat(what, " failed: ", describe(result), "."), result);
}

Current::Current(Context context) {
  const Table& cuda = table();
  check(cuda.context_get(&before_), "cuCtxGetCurrent");
  if (before_ == context) return;
  check(cuda.context_set(context), "cuCtxSetCurrent");
  changed_ = true;
}

Current::~Current() {
  if (changed_) table().context_set(before_);
}

Context primary_context(int ordinal) {
  static std::mutex mutex;
  static auto& contexts = *new std::map<int, Context>;
  const std::scoped_lock lock(mutex);
  if (const auto found = contexts.find(ordinal); found != contexts.end()) return found->second;
  const Table& cuda = table();
  int count = 0;
  check(cuda.device_count(&count), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count) {
    throw InvalidArgument(concat("device ", ordinal, "; this process sees ", count,
                                 count == 1 ? " GPU" : " GPUs", ", expected 0 to ", count - 1,
                                 " (see CUDA_VISIBLE_DEVICES)."));
  }
  Device device = 0;
  check(cuda.device_get(&device, ordinal), "cuDeviceGet");
  Context context = nullptr;
  check(cuda.primary_context(&context, device), "cuDevicePrimaryCtxRetain");
  return contexts[ordinal] = context;
}

}  // namespace accl::driver
