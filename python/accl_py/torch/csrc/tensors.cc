#include "tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <unordered_set>

namespace accl::adapter {
namespace {

// Copies of staging are no operations of the user's program: autograd must not record them,
// inference tensors must accept them, and a Python dispatch mode (fake tensors, say) must not see
// them.
class QuietDispatch {
 public:
  QuietDispatch() = default;

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_python_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::ScalarType::Double:
      return DType::kFloat64;
    case at::ScalarType::Float:
      return DType::kFloat32;
    case at::ScalarType::Half:
      return DType::kFloat16;
    case at::ScalarType::BFloat16:
      return DType::kBfloat16;
    case at::ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case at::ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    case at::ScalarType::Char:
      return DType::kInt8;
    case at::ScalarType::Short:
      return DType::kInt16;
    case at::ScalarType::Int:
      return DType::kInt32;
    case at::ScalarType::Long:
      return DType::kInt64;
    case at::ScalarType::Byte:
      return DType::kUint8;
    case at::ScalarType::UInt16:
      return DType::kUint16;
    case at::ScalarType::UInt32:
      return DType::kUint32;
    case at::ScalarType::UInt64:
      return DType::kUint64;
    case at::ScalarType::Bool:
      return DType::kBool;
    case at::ScalarType::ComplexFloat:
      return DType::kComplex64;
    case at::ScalarType::ComplexDouble:
      return DType::kComplex128;
    default:  // torch's list, not ours: it grows with each version
      return std::nullopt;
  }
}

// The tensor's own memory is its elements in logical order, and holds their true values.
bool is_packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor packed_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor packed_copy(const at::Tensor& tensor) {
  at::Tensor packed = packed_like(tensor);
  packed.copy_(tensor);
  return packed;
}

// Strides in ascending order, each longer than all that the smaller ones can reach: then no two
// indices meet. Holds for every slice, transpose and permutation of ordinary memory.
bool strides_are_disjoint(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dims.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

// For the rare layouts that strides alone do not clear: visits every element.
bool offsets_are_distinct(const at::Tensor& tensor) {
  std::unordered_set<int64_t> seen;
  seen.reserve(static_cast<std::size_t>(tensor.numel()));
  std::vector<int64_t> index(static_cast<std::size_t>(tensor.dim()), 0);
  for (int64_t n = 0; n < tensor.numel(); ++n) {
    int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      offset += index[d] * tensor.stride(static_cast<int64_t>(d));
    }
    if (!seen.insert(offset).second) return false;
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.size(static_cast<int64_t>(d))) break;
      index[d] = 0;
    }
  }
  return true;
}

}  // namespace

std::string describe(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);  // c10::toString gives the C++ name, "Float"
}

ElementType moved_type(at::ScalarType type) noexcept {
  if (const auto dtype = dtype_of(type)) return {*dtype, 1};
  return {DType::kUint8, c10::elementSize(type)};
}

DType reduced_type(at::ScalarType type, const std::string& call) {
  const auto dtype = dtype_of(type);
  TORCH_CHECK(dtype.has_value(), "accl ", call, ": cannot compute with elements of type torch.",
              describe(type), "; convert the tensor first, for example with .float().");
  return *dtype;
}

void require_dense(const at::Tensor& tensor, const std::string& what) {
  TORCH_CHECK(tensor.defined(), what, " is an undefined tensor.");
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_cuda(), what, " is on ",
              tensor.device().str(), ", expected a CPU or CUDA tensor.");
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_nested(), what, " has layout ",
              tensor.layout(), tensor.is_nested() ? " (nested)" : "",
              ", expected a dense strided tensor; convert it with .to_dense().");
  TORCH_CHECK(!tensor.is_quantized(), what,
              " is quantized, expected a plain dtype; send .int_repr() and the scale instead.");
}

void require_writable(const at::Tensor& tensor, const std::string& what) {
  if (tensor.numel() <= 1 || tensor.is_contiguous() || strides_are_disjoint(tensor)) return;
  TORCH_CHECK(offsets_are_distinct(tensor), what, " has sizes ", tensor.sizes(), " and strides ",
              tensor.strides(),
              ": several of its elements share memory (is it an expanded tensor?), so a result "
              "cannot be written "
              "to it; pass .contiguous() or .clone().");
}

void Staging::place(const at::Tensor& tensor, const std::string& what) {
  require_dense(tensor, what);
  if (!placed_) device_ = tensor.device();
  placed_ = true;
  TORCH_CHECK(tensor.device() == device_, what, " is on ", tensor.device().str(), ", expected ",
              device_.str(), " like the other tensors of the call.");
}

void* Staging::input(const at::Tensor& tensor, const std::string& what) {
  place(tensor, what);
  if (!is_packed(tensor)) return private_input(tensor, what);
  keep(tensor);
  return const_cast<void*>(tensor.const_data_ptr());  // the engine never writes an input
}

void* Staging::private_input(const at::Tensor& tensor, const std::string& what) {
  place(tensor, what);
  const QuietDispatch quiet;
  keep(packed_copy(tensor));
  return kept_.back().mutable_data_ptr();
}

void* Staging::output(const at::Tensor& tensor, const std::string& what) {
  place(tensor, what);
  require_writable(tensor, what);
  keep(tensor);
  if (is_packed(tensor)) return tensor.mutable_data_ptr();
  const QuietDispatch quiet;
  copies_.push_back({packed_like(tensor), tensor});
  return copies_.back().from.mutable_data_ptr();
}

void* Staging::in_place(const at::Tensor& tensor, const std::string& what) {
  void* memory = output(tensor, what);
  if (is_packed(tensor)) return memory;
  const QuietDispatch quiet;
  copies_.back().from.copy_(tensor);
  return memory;
}

void Staging::copy_back() {
  const QuietDispatch quiet;
  for (auto& copy : copies_) copy.to.copy_(copy.from);
}

void Staging::record_stream(const c10::Stream& stream) const {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  const auto record = [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  };
  for (const auto& tensor : kept_) record(tensor);
  for (const auto& copy : copies_) {
    record(copy.from);
    record(copy.to);
  }
}

void Staging::release() noexcept {
  kept_.clear();
  copies_.clear();
}

bool overlaps(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept {
  if (a_bytes == 0 || b_bytes == 0) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace accl::adapter
