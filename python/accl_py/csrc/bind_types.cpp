// types.h: words for collectives, dtypes and operations.
#include <pybind11/stl.h>

#include "accl/types.h"
#include "bindings.h"
#include "words.h"

namespace accl::python {

void bind_types(py::module_& module) {
  py::enum_<Collective> collective(module, "Collective");
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto value = static_cast<Collective>(i);
    collective.value(std::string(name_of(value)).c_str(), value);
  }
  py::enum_<DType> dtype(module, "DType");
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto value = static_cast<DType>(i);
    dtype.value(std::string(name_of(value)).c_str(), value);
  }
  py::enum_<ReduceOp> op(module, "ReduceOp");
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto value = static_cast<ReduceOp>(i);
    op.value(std::string(name_of(value)).c_str(), value);
  }
  module.def("size_of", [](DType d) { return size_of(d); }, "Bytes of one element.");
  module.def("supports", [](ReduceOp o, DType d) { return supports(o, d); });
  module.def("collective", &collective_of,
             "The collective of either spelling; InvalidArgument names the accepted words.");
  module.def("reduce_op", &reduce_op_of);
  module.def("dtype", &dtype_of);
}

}  // namespace accl::python
