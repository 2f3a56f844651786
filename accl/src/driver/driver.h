// Driver: the CUDA driver, loaded at run time, as one table of function pointers.
//
// Nothing of CUDA is needed to build: the types and numbers below are those of cuda.h, whose binary
// interface is fixed. ACCL_CUDA_LIBRARY names another library, such as the fake of the tests.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace accl::driver {

using Result = int;  // CUresult; 0 is success
inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;

using Device = int;
using Pointer = unsigned long long;
struct Context_;
struct Stream_;
struct Event_;
struct Module_;
struct Function_;
using Context = Context_*;
using Stream = Stream_*;
using Event = Event_*;
using Module = Module_*;
using Function = Function_*;
struct IpcHandle {
  char bytes[64];
};
struct Uuid {
  char bytes[16];
};

inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostMapped = 2;
inline constexpr int kCaptureNone = 0;  // CUstreamCaptureStatus
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureRelaxed = 2;  // CUstreamCaptureMode
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeMajor = 75;
inline constexpr int kAttributeMinor = 76;

// member, symbol, parameters; all return Result.
#define ACCL_DRIVER_FUNCTIONS(X)                                                                  \
  X(init, "cuInit", (unsigned flags))                                                             \
  X(driver_version, "cuDriverGetVersion", (int* version))                                         \
  X(device_count, "cuDeviceGetCount", (int* count))                                               \
  X(device_get, "cuDeviceGet", (Device * device, int ordinal))                                    \
  X(device_name, "cuDeviceGetName", (char* name, int length, Device device))                      \
  X(device_uuid, "cuDeviceGetUuid_v2", (Uuid * uuid, Device device))                              \
  X(device_bus_id, "cuDeviceGetPCIBusId", (char* text, int length, Device device))                \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, Device device))         \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int* can, Device device, Device peer))             \
  X(primary_context, "cuDevicePrimaryCtxRetain", (Context * context, Device device))              \
  X(context_get, "cuCtxGetCurrent", (Context * context))                                          \
  X(context_set, "cuCtxSetCurrent", (Context context))                                            \
  X(event_create, "cuEventCreate", (Event * event, unsigned flags))                               \
  X(event_destroy, "cuEventDestroy_v2", (Event event))                                            \
  X(event_record, "cuEventRecord", (Event event, Stream stream))                                  \
  X(event_query, "cuEventQuery", (Event event))                                                   \
  X(event_synchronize, "cuEventSynchronize", (Event event))                                       \
  X(event_elapsed, "cuEventElapsedTime", (float* milliseconds, Event start, Event end))           \
  X(stream_wait, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))               \
  X(stream_create, "cuStreamCreateWithPriority", (Stream * stream, unsigned flags, int priority)) \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                        \
  X(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                   \
  X(stream_capture_status, "cuStreamIsCapturing", (Stream stream, int* status))                   \
  X(stream_capture_info, "cuStreamGetCaptureInfo_v2",                                             \
    (Stream stream, int* status, std::uint64_t* id, void** graph, const void** dependencies,      \
     std::size_t* count))                                                                         \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                      \
  X(memory_allocate, "cuMemAlloc_v2", (Pointer * memory, std::size_t bytes))                      \
  X(memory_free, "cuMemFree_v2", (Pointer memory))                                                \
  X(memory_set, "cuMemsetD8_v2", (Pointer memory, unsigned char value, std::size_t bytes))        \
  X(memory_copy, "cuMemcpyAsync", (Pointer to, Pointer from, std::size_t bytes, Stream stream))   \
  X(host_allocate, "cuMemHostAlloc", (void** memory, std::size_t bytes, unsigned flags))          \
  X(host_device_pointer, "cuMemHostGetDevicePointer_v2",                                          \
    (Pointer * at, void* host, unsigned flags))                                                   \
  X(host_free, "cuMemFreeHost", (void* memory))                                                   \
  X(ipc_get, "cuIpcGetMemHandle", (IpcHandle * handle, Pointer memory))                           \
  X(ipc_open, "cuIpcOpenMemHandle_v2", (Pointer * memory, IpcHandle handle, unsigned flags))      \
  X(ipc_close, "cuIpcCloseMemHandle", (Pointer memory))                                           \
  X(module_load, "cuModuleLoadData", (Module * module, const void* image))                        \
  X(module_unload, "cuModuleUnload", (Module module))                                             \
  X(module_function, "cuModuleGetFunction",                                                       \
    (Function * function, Module module, const char* name))                                       \
  X(launch, "cuLaunchKernel",                                                                     \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,  \
     void** extra))                                                                               \
  X(host_function, "cuLaunchHostFunc", (Stream stream, void (*function)(void*), void* data))      \
  X(error_name, "cuGetErrorName", (Result result, const char** name))                             \
  X(error_text, "cuGetErrorString", (Result result, const char** text))

struct Table {
#define ACCL_DRIVER_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  ACCL_DRIVER_FUNCTIONS(ACCL_DRIVER_MEMBER)
#undef ACCL_DRIVER_MEMBER
};

// The loaded and initialised driver. Throws SystemError with a sentence where there is none, and
// the same sentence again at later calls.
const Table& table();

// Throws SystemError "<what> failed: <the driver's name and text of the error>" unless success.
void check(Result result, const char* what);
std::string describe(Result result);

// Makes the device's primary context current in this thread for a scope; that is also what CUDA's
// runtime (NCCL's, torch's) takes for its current device. Free where it is current already.
class Current {
 public:
  explicit Current(Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  Context before_ = nullptr;
  bool changed_ = false;
};

// Lets this thread make calls, for a scope, that would else spoil a capture into a graph that goes
// on anywhere in the process (asking an event, say).
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { table().exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { table().exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kCaptureRelaxed;
};

// The primary context of a device; kept for the life of the process. Throws InvalidArgument for an
// ordinal that does not exist ("device 3; this process sees 1 device ...").
Context primary_context(int ordinal);

}  // namespace accl::driver
