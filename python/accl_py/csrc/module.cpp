// accl_py._core: the C++ core for Python. Knows nothing of torch.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  using namespace accl::python;
  module.doc() = "The C++ core of ACCL-N. Use accl_py instead.";
  module.attr("version") = ACCL_VERSION;
  bind_errors(module);
  bind_types(module);
  bind_environment(module);
  bind_rules(module);
  bind_schedule(module);
  bind_communicator(module);
  bind_device(module);
}
