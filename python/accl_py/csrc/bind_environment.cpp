// environment.h
#include "accl/environment.h"
#include "bindings.h"

namespace accl::python {

void bind_environment(py::module_& module) {
  module.def(
      "environment_table",
      [] {
        py::list rows;
        for (const EnvironmentVariable& v : environment_table()) {
          py::dict row;
          row["name"] = v.name;
          row["default"] = v.default_value;
          row["accepted"] = v.accepted;
          row["meaning"] = v.meaning;
          rows.append(row);
        }
        return rows;
      },
      "The environment variables that ACCL-N reads.");
  module.def("reload_environment", &reload_environment, "Reads the environment variables again.");
}

}  // namespace accl::python
