// What the binding files share: one function a public header, and the error tree.
#pragma once

#include <pybind11/pybind11.h>

namespace accl::python {

namespace py = pybind11;

void bind_errors(py::module_& module);
void bind_types(py::module_& module);
void bind_environment(py::module_& module);
void bind_rules(py::module_& module);
void bind_schedule(py::module_& module);
void bind_communicator(py::module_& module);
void bind_device(py::module_& module);

}  // namespace accl::python
