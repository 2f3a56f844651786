// The fake CUDA driver: see fakes.h.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fakes.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace accl::driver {

// fake_init is what the linker calls cuInit, and so on: a definition with other parameters than the
// table's does not compile.
#define FAKE_DECLARE(member, symbol, parameters) \
  FAKE_EXPORT accl::driver::Result fake_##member parameters __asm__(symbol);
ACCL_DRIVER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

namespace {

constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kNoDevice = 100;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotSupported = 801;
constexpr Result kCaptureUnsupported = 900;
constexpr Result kCaptureInvalidated = 901;
constexpr Result kCaptureMerge = 902;
constexpr Result kCaptureIsolation = 905;
constexpr Result kCapturedEvent = 907;

constexpr int kCaptureInvalid = 2;
constexpr unsigned kWaitExternal = 1;

using Clock = std::chrono::steady_clock;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what);
  std::abort();
}

// A place in a stream that is passed once.
class Point {
 public:
  void pass() {
    const std::scoped_lock lock(mutex_);
    passed_ = true;
    when_ = Clock::now();
    changed_.notify_all();
  }
  bool passed() {
    const std::scoped_lock lock(mutex_);
    return passed_;
  }
  Clock::time_point wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return passed_; });
    return when_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  Clock::time_point when_;
};

// Tasks that a thread of its own does one after the other.
class Queue {
 public:
  using Task = std::function<void()>;

  static std::shared_ptr<Queue> start() {
    auto queue = std::make_shared<Queue>();
    std::thread([queue] { queue->work(); }).detach();
    return queue;
  }
  void push(Task task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  void close() {  // the thread ends after what is there
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }
  std::shared_ptr<Point> mark() {
    auto point = std::make_shared<Point>();
    push([point] { point->pass(); });
    return point;
  }

 private:
  void work() {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closed_ = false;
};

}  // namespace

struct Stream_ {
  Context context;
  std::shared_ptr<Queue> queue = Queue::start();
  bool destroyed = false;
  std::uint64_t capture = 0;  // number of the capture that it takes part in
  int status = 0;
  std::vector<std::shared_ptr<Point>> pauses;
};

struct Event_ {
  Context context;
  bool timing = false;
  bool destroyed = false;
  std::uint64_t capture = 0;     // in which it was recorded last
  std::shared_ptr<Point> point;  // null before it was recorded
};

struct Context_ {
  Device device;
  std::unique_ptr<Stream_> null_stream;
};

namespace {

struct Allocation {
  std::size_t bytes;
  Context context;
};

// What was destroyed is remembered, so that a later use is told from a wrong number. Never freed:
// threads of streams run until the process ends.
struct State {
  std::mutex mutex;
  int devices = -1;  // below 0 before cuInit
  std::map<Device, std::unique_ptr<Context_>> contexts;
  std::unordered_map<Stream, std::unique_ptr<Stream_>> streams;
  std::unordered_map<Event, std::unique_ptr<Event_>> events;
  long live_events = 0;
  long live_streams = 0;
  std::map<Pointer, Allocation> memory;
  std::map<void*, std::size_t> host_memory;
  std::uint64_t captures = 0;
};

State& state() {
  static auto& made = *new State;
  return made;
}

thread_local Context current = nullptr;
thread_local int capture_mode = 0;  // global

// All below need the state's mutex.

bool is_null_stream(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// Null (and *result) for a handle that never was one.
Stream find_stream(Stream stream, Result* result) {
  if (is_null_stream(stream)) {
    if (current == nullptr) *result = kInvalidContext;
    return current == nullptr ? nullptr : current->null_stream.get();
  }
  const auto found = state().streams.find(stream);
  if (found == state().streams.end()) {
    *result = kInvalidHandle;
    return nullptr;
  }
  if (stream->destroyed) misuse("a stream is used after cuStreamDestroy.");
  return stream;
}

Event find_event(Event event) {
  if (!state().events.contains(event)) misuse("an event is used that never was one.");
  if (event->destroyed) misuse("an event is used after cuEventDestroy.");
  return event;
}

template <class Visit>
void each_stream(Visit visit) {
  for (const auto& [ordinal, context] : state().contexts) visit(*context->null_stream);
  for (const auto& [handle, stream] : state().streams) {
    if (!stream->destroyed) visit(*stream);
  }
}

bool capture_goes_on(std::uint64_t capture) {
  bool found = false;
  each_stream([&](const Stream_& stream) { found = found || stream.capture == capture; });
  return found;
}

// What CUDA forbids while a capture goes on anywhere, but for threads in relaxed mode.
Result check_unsafe() {
  if (capture_mode == kCaptureRelaxed) return kSuccess;
  bool spoilt = false;
  each_stream([&](Stream_& stream) {
    if (stream.status != kCaptureActive) return;
    stream.status = kCaptureInvalid;
    spoilt = true;
  });
  return spoilt ? kCaptureUnsupported : kSuccess;
}

// Work that is captured is dropped.
Result put(Stream stream, Queue::Task task) {
  std::unique_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) return result;
  if (found->status == kCaptureInvalid) return kCaptureInvalidated;
  if (found->status == 0) found->queue->push(std::move(task));
  return kSuccess;
}

// As freeing memory does: waits for all that is on the context's streams.
void wait_for_context(Context context) {
  std::vector<std::shared_ptr<Point>> points;
  {
    const std::scoped_lock lock(state().mutex);
    each_stream([&](Stream_& stream) {
      if (stream.context == context) points.push_back(stream.queue->mark());
    });
  }
  for (const auto& point : points) point->wait();
}

int devices_of_environment() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 2 : std::atoi(text);
}

bool is_device(Device device) { return device >= 0 && device < state().devices; }

std::byte* memory_at(Pointer pointer) { return reinterpret_cast<std::byte*>(pointer); }

}  // namespace

// Devices.

Result fake_init(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (state().devices < 0) state().devices = devices_of_environment();
  return state().devices == 0 ? kNoDevice : kSuccess;
}

Result fake_driver_version(int* version) {
  if (version == nullptr) return kInvalidValue;
  *version = 13000;
  return kSuccess;
}

Result fake_device_count(int* count) {
  if (count == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (state().devices < 0) return kNotInitialized;
  *count = state().devices;
  return kSuccess;
}

Result fake_device_get(Device* device, int ordinal) {
  if (device == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (state().devices < 0) return kNotInitialized;
  if (!is_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Result fake_device_name(char* name, int length, Device device) {
  if (name == nullptr || length <= 0) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device)) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return kSuccess;
}

Result fake_device_uuid(Uuid* uuid, Device device) {
  if (uuid == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device)) return kInvalidDevice;
  *uuid = {};
  std::memcpy(uuid->bytes, "fake", 4);
  std::memcpy(uuid->bytes + 4, &device, sizeof device);
  return kSuccess;
}

Result fake_device_bus_id(char* text, int length, Device device) {
  if (text == nullptr || length <= 0) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device)) return kInvalidDevice;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(device) + 1U);
  return kSuccess;
}

Result fake_device_attribute(int* value, int attribute, Device device) {
  if (value == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device)) return kInvalidDevice;
  switch (attribute) {
    case kAttributeMultiprocessors:
      *value = 132;
      return kSuccess;
    case kAttributeMajor:
      *value = 9;
      return kSuccess;
    case kAttributeMinor:
      *value = 0;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

Result fake_can_access_peer(int* can, Device device, Device peer) {
  if (can == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device) || !is_device(peer)) return kInvalidDevice;
  *can = device == peer ? 0 : 1;
  return kSuccess;
}

// Contexts.

Result fake_primary_context(Context* context, Device device) {
  if (context == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  if (!is_device(device)) return kInvalidDevice;
  auto& made = state().contexts[device];
  if (!made) {
    made = std::make_unique<Context_>();
    made->device = device;
    made->null_stream = std::make_unique<Stream_>();
    made->null_stream->context = made.get();
  }
  *context = made.get();
  return kSuccess;
}

Result fake_context_get(Context* context) {
  if (context == nullptr) return kInvalidValue;
  *context = current;
  return kSuccess;
}

Result fake_context_set(Context context) {
  current = context;
  return kSuccess;
}

// Events.

Result fake_event_create(Event* event, unsigned flags) {
  if (event == nullptr) return kInvalidValue;
  if (current == nullptr) return kInvalidContext;
  auto made = std::make_unique<Event_>();
  made->context = current;
  made->timing = (flags & kEventDisableTiming) == 0;
  *event = made.get();
  const std::scoped_lock lock(state().mutex);
  state().events.emplace(made.get(), std::move(made));
  ++state().live_events;
  return kSuccess;
}

Result fake_event_destroy(Event event) {
  if (event == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  find_event(event)->destroyed = true;
  event->point.reset();
  --state().live_events;
  return kSuccess;
}

Result fake_event_record(Event event, Stream stream) {
  if (event == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) return result;
  if (find_event(event)->context != found->context) return kInvalidHandle;
  if (found->status == kCaptureInvalid) return kCaptureInvalidated;
  event->capture = found->capture;
  event->point = found->capture == 0 ? found->queue->mark() : nullptr;
  return kSuccess;
}

Result fake_event_query(Event event) {
  if (event == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  find_event(event);
  if (event->capture != 0) return kCapturedEvent;
  if (const Result result = check_unsafe(); result != kSuccess) return result;
  return event->point == nullptr || event->point->passed() ? kSuccess : kNotReady;
}

Result fake_event_synchronize(Event event) {
  if (event == nullptr) return kInvalidHandle;
  std::shared_ptr<Point> point;
  {
    const std::scoped_lock lock(state().mutex);
    find_event(event);
    if (event->capture != 0) return kCapturedEvent;
    if (const Result result = check_unsafe(); result != kSuccess) return result;
    point = event->point;
  }
  if (point != nullptr) point->wait();
  return kSuccess;
}

Result fake_event_elapsed(float* milliseconds, Event start, Event end) {
  if (milliseconds == nullptr) return kInvalidValue;
  if (start == nullptr || end == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  for (const Event event : {find_event(start), find_event(end)}) {
    if (event->capture != 0) return kCapturedEvent;
    if (!event->timing || event->point == nullptr) return kInvalidHandle;
    if (!event->point->passed()) return kNotReady;
  }
  const std::chrono::duration<float, std::milli> time = end->point->wait() - start->point->wait();
  *milliseconds = time.count();
  return kSuccess;
}

// Streams.

Result fake_stream_create(Stream* stream, unsigned, int) {
  if (stream == nullptr) return kInvalidValue;
  if (current == nullptr) return kInvalidContext;
  auto made = std::make_unique<Stream_>();
  made->context = current;
  *stream = made.get();
  const std::scoped_lock lock(state().mutex);
  state().streams.emplace(made.get(), std::move(made));
  ++state().live_streams;
  return kSuccess;
}

// What is on the stream is still done.
Result fake_stream_destroy(Stream stream) {
  if (is_null_stream(stream)) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  if (find_stream(stream, &result) == nullptr) return result;
  stream->destroyed = true;
  stream->queue->close();
  --state().live_streams;
  return kSuccess;
}

Result fake_stream_synchronize(Stream stream) {
  std::shared_ptr<Point> point;
  {
    const std::scoped_lock lock(state().mutex);
    Result result = kSuccess;
    const Stream found = find_stream(stream, &result);
    if (found == nullptr) return result;
    if (found->status != 0) {
      found->status = kCaptureInvalid;
      return kCaptureUnsupported;
    }
    if (const Result unsafe = check_unsafe(); unsafe != kSuccess) return unsafe;
    point = found->queue->mark();
  }
  point->wait();
  return kSuccess;
}

Result fake_stream_wait(Stream stream, Event event, unsigned flags) {
  if (event == nullptr) return kInvalidHandle;
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) return result;
  find_event(event);
  if (found->status == kCaptureInvalid) return kCaptureInvalidated;
  if (event->capture != 0) {
    if (!capture_goes_on(event->capture)) return kCapturedEvent;
    if (found->capture != 0) return found->capture == event->capture ? kSuccess : kCaptureMerge;
    found->capture = event->capture;  // the stream joins the capture
    found->status = kCaptureActive;
    return kSuccess;
  }
  if (event->point == nullptr) return kSuccess;
  if (found->capture != 0) return (flags & kWaitExternal) != 0 ? kSuccess : kCaptureIsolation;
  found->queue->push([point = event->point] { point->wait(); });
  return kSuccess;
}

Result fake_stream_capture_status(Stream stream, int* status) {
  return fake_stream_capture_info(stream, status, nullptr, nullptr, nullptr, nullptr);
}

Result fake_stream_capture_info(Stream stream, int* status, std::uint64_t* id, void** graph,
                                const void** dependencies, std::size_t* count) {
  if (status == nullptr) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) return result;
  *status = found->status;
  if (id != nullptr) *id = found->capture;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return kSuccess;
}

Result fake_exchange_capture_mode(int* mode) {
  if (mode == nullptr || *mode < 0 || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(capture_mode, *mode);
  return kSuccess;
}

Result fake_host_function(Stream stream, void (*function)(void*), void* data) {
  if (function == nullptr) return kInvalidValue;
  return put(stream, [function, data] { function(data); });
}

// Memory.

Result fake_memory_allocate(Pointer* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) return kInvalidValue;
  if (current == nullptr) return kInvalidContext;
  const std::scoped_lock lock(state().mutex);
  if (const Result result = check_unsafe(); result != kSuccess) return result;
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (made == nullptr) return kOutOfMemory;
  *memory = reinterpret_cast<Pointer>(made);
  state().memory.emplace(*memory, Allocation{bytes, current});
  return kSuccess;
}

Result fake_memory_free(Pointer memory) {
  if (memory == 0) return kSuccess;
  Context context = nullptr;
  {
    const std::scoped_lock lock(state().mutex);
    if (const Result result = check_unsafe(); result != kSuccess) return result;
    const auto found = state().memory.find(memory);
    if (found == state().memory.end()) return kInvalidValue;
    context = found->second.context;
    state().memory.erase(found);
  }
  wait_for_context(context);
  std::free(memory_at(memory));
  return kSuccess;
}

Result fake_memory_set(Pointer memory, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return kSuccess;
  if (memory == 0) return kInvalidValue;
  {
    const std::scoped_lock lock(state().mutex);
    if (const Result result = check_unsafe(); result != kSuccess) return result;
  }
  return put(nullptr, [=] { std::memset(memory_at(memory), value, bytes); });
}

Result fake_memory_copy(Pointer to, Pointer from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return kSuccess;
  if (to == 0 || from == 0) return kInvalidValue;
  return put(stream, [=] { std::memmove(memory_at(to), memory_at(from), bytes); });
}

Result fake_host_allocate(void** memory, std::size_t bytes, unsigned) {
  if (memory == nullptr || bytes == 0) return kInvalidValue;
  if (current == nullptr) return kInvalidContext;
  const std::scoped_lock lock(state().mutex);
  if (const Result result = check_unsafe(); result != kSuccess) return result;
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return kOutOfMemory;
  state().host_memory.emplace(*memory, bytes);
  return kSuccess;
}

Result fake_host_device_pointer(Pointer* at, void* host, unsigned flags) {
  if (at == nullptr || host == nullptr || flags != 0) return kInvalidValue;
  *at = reinterpret_cast<Pointer>(host);
  return kSuccess;
}

Result fake_host_free(void* memory) {
  {
    const std::scoped_lock lock(state().mutex);
    if (state().host_memory.erase(memory) == 0) return kInvalidValue;
  }
  std::free(memory);
  return kSuccess;
}

// What needs a GPU.

Result fake_ipc_get(IpcHandle*, Pointer) { return kNotSupported; }
Result fake_ipc_open(Pointer*, IpcHandle, unsigned) { return kNotSupported; }
Result fake_ipc_close(Pointer) { return kNotSupported; }
Result fake_module_load(Module*, const void*) { return kNotSupported; }
Result fake_module_unload(Module) { return kNotSupported; }
Result fake_module_function(Function*, Module, const char*) { return kNotSupported; }
Result fake_launch(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream, void**, void**) {
  return kNotSupported;
}

// Errors.

namespace {

struct ErrorText {
  Result result;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorText* find_error(Result result) {
  for (const ErrorText& error : kErrors) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

}  // namespace

Result fake_error_name(Result result, const char** name) {
  if (name == nullptr) return kInvalidValue;
  const ErrorText* error = find_error(result);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result fake_error_text(Result result, const char** text) {
  if (text == nullptr) return kInvalidValue;
  const ErrorText* error = find_error(result);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? kInvalidValue : kSuccess;
}

}  // namespace accl::driver

// Control.

using namespace accl::driver;

FAKE_EXPORT void fake_cuda_set_capturing(Stream stream, int status) {
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) misuse("fake_cuda_set_capturing: no such stream.");
  if (status == 0) {
    const std::uint64_t capture = found->capture;
    each_stream([&](Stream_& other) {
      if (other.capture == capture) other.status = 0, other.capture = 0;
    });
    return;
  }
  found->status = status;
  if (found->capture == 0) found->capture = ++state().captures;
}

FAKE_EXPORT void fake_cuda_pause(Stream stream) {
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) misuse("fake_cuda_pause: no such stream.");
  const auto& point = found->pauses.emplace_back(std::make_shared<Point>());
  found->queue->push([point] { point->wait(); });
}

FAKE_EXPORT void fake_cuda_resume(Stream stream) {
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  if (found == nullptr) misuse("fake_cuda_resume: no such stream.");
  for (const auto& point : found->pauses) point->pass();
  found->pauses.clear();
}

FAKE_EXPORT long fake_cuda_live_events() {
  const std::scoped_lock lock(state().mutex);
  return state().live_events;
}

FAKE_EXPORT long fake_cuda_live_streams() {
  const std::scoped_lock lock(state().mutex);
  return state().live_streams;
}

FAKE_EXPORT std::size_t fake_cuda_live_bytes() {
  const std::scoped_lock lock(state().mutex);
  std::size_t bytes = 0;
  for (const auto& [pointer, allocation] : state().memory) bytes += allocation.bytes;
  for (const auto& [pointer, size] : state().host_memory) bytes += size;
  return bytes;
}

FAKE_EXPORT int fake_cuda_device_of(Stream stream) {
  const std::scoped_lock lock(state().mutex);
  Result result = kSuccess;
  const Stream found = find_stream(stream, &result);
  return found == nullptr ? -1 : found->context->device;
}
