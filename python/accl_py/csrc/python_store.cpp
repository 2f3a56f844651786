#include "python_store.h"

#include <string>

#include "accl/error.h"

namespace accl::python {

namespace py = pybind11;

// A Python exception as an error of ours.
void PythonStore::rethrow(const py::error_already_set& error, const std::string& what) {
  if (!error.matches(PyExc_Exception)) {  // KeyboardInterrupt, SystemExit
    interrupt_ = error;
    throw StoreError(what + ": interrupted");
  }
  const std::string text = what + ": " + py::str(error.value()).cast<std::string>();
  if (error.matches(PyExc_TimeoutError)) throw TimeoutError(text);
  throw StoreError(text);
}

void PythonStore::set(const std::string& key, const std::string& value) {
  const py::gil_scoped_acquire gil;
  try {
    object_.attr("set")(key, py::bytes(value));
  } catch (py::error_already_set& error) {
    rethrow(error, "the store could not set '" + key + "'");
  }
}

std::string PythonStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object value = object_.attr("get")(key, static_cast<double>(timeout.count()) / 1e3);
    return value.cast<std::string>();
  } catch (py::error_already_set& error) {
    rethrow(error, "the store could not get '" + key + "'");
  }
}

}  // namespace accl::python
