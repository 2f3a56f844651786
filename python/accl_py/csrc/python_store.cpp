#include "python_store.h"

#include <string>

#include "accl/error.h"
#include "exit_gate.h"

namespace accl::python {

namespace py = pybind11;

namespace {

// The GIL, for one call of the store. The watchdog's thread asks for it while the interpreter ends.
class Entered {
 public:
  Entered() : through_gate_(ExitGate::get().enter()) {
    if (!through_gate_ && !ExitGate::get().closed_by_this_thread())
      throw StoreError("The store is gone: the Python interpreter ends.");
    state_ = PyGILState_Ensure();
  }
  ~Entered() {
    PyGILState_Release(state_);
    if (through_gate_) ExitGate::get().leave();
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const bool through_gate_;
  PyGILState_STATE state_;
};

}  // namespace

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
  const Entered gil;
  try {
    object_.attr("set")(key, py::bytes(value));
  } catch (py::error_already_set& error) {
    rethrow(error, "the store could not set '" + key + "'");
  }
}

std::string PythonStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  const Entered gil;
  try {
    const py::object value = object_.attr("get")(key, static_cast<double>(timeout.count()) / 1e3);
    return value.cast<std::string>();
  } catch (py::error_already_set& error) {
    rethrow(error, "the store could not get '" + key + "'");
  }
}

std::shared_ptr<PythonStore> shared_store(py::object object) {
  const auto drop = [](PythonStore* store) { with_gil([store] { delete store; }); };
  return {new PythonStore(std::move(object)), drop};
}

}  // namespace accl::python
