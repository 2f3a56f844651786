// How a torch tensor becomes memory that the engine can move, and how the result comes back.
//
// The engine wants contiguous memory in *logical order*: the order in which indexing walks the
// tensor, last dimension fastest, whatever the strides are. Ranks may hold the same tensor in
// different memory formats, so only the logical order means the same on all of them. A tensor that
// is laid out like this is used in place; any other is staged: copied to a packed twin before the
// call (unless it is only written), and copied back after it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "accl/types.h"

namespace accl::adapter {

// What the engine is told about the elements of a tensor: `count` engine elements for each of the
// tensor's.
struct ElementType {
  DType dtype = DType::kUint8;
  std::size_t count = 1;
};

// For collectives that only move data: any element type goes; one that the engine has no name for
// moves as bytes.
ElementType moved_type(at::ScalarType type) noexcept;

// For collectives that compute. Throws (RuntimeError in Python) for a type that the engine cannot
// reduce.
DType reduced_type(at::ScalarType type, const std::string& call);

// Throws unless the tensor is defined, dense, strided and on the CPU or a GPU. `what` names it in
// the sentence, as in "accl all_gather: input".
void require_dense(const at::Tensor& tensor, const std::string& what);

// Throws if two elements of the tensor share memory: a result cannot be written to it.
void require_writable(const at::Tensor& tensor, const std::string& what);

std::string describe(at::ScalarType type);  // "float32" as users write it, after "torch."

// The memory of one call: packed twins, what to copy back, and what must stay alive until the call
// is done.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&&) = default;
  Staging& operator=(Staging&&) = default;

  // Address of the tensor's elements in logical order. The tensor is validated first; `what` as
  // above.
  void* input(const at::Tensor& tensor, const std::string& what);
  void* output(const at::Tensor& tensor, const std::string& what);
  void* in_place(const at::Tensor& tensor, const std::string& what);

  // Like input(), but always a copy: for calls that may not overlap their output.
  void* private_input(const at::Tensor& tensor, const std::string& what);

  // Keeps `tensor` alive until release().
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }

  bool copies_back() const noexcept { return !copies_.empty(); }

  // Writes staged results to the caller's tensors. Once, after the engine is done; for tensors of a
  // GPU, on the current stream, after the call was put there.
  void copy_back();

  // Where the tensors of the call are: all on one device. The CPU before the first.
  c10::Device device() const noexcept { return device_; }

  // Tells torch's allocator that `stream` uses the memory too, and may still do so when it is
  // freed.
  void record_stream(const c10::Stream& stream) const;

  // Lets go of all memory.
  void release() noexcept;

 private:
  void place(const at::Tensor& tensor, const std::string& what);

  struct CopyBack {
    at::Tensor from;
    at::Tensor to;
  };

  c10::Device device_{c10::DeviceType::CPU};
  bool placed_ = false;

  std::vector<at::Tensor> kept_;
  std::vector<CopyBack> copies_;
};

// True if the two ranges of bytes have a byte in common.
bool overlaps(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept;

}  // namespace accl::adapter
