// PythonStore: a Python object (accl_py.stores.StoreAdapter) as a Store. Takes the GIL for each
// call, on any thread; once the interpreter ends, every call fails.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "accl/store.h"

namespace accl::python {

class PythonStore final : public Store {
 public:
  explicit PythonStore(pybind11::object object) : object_(std::move(object)) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  // Raises the KeyboardInterrupt (or SystemExit) that ended a call of the store, if one did. Needs
  // the GIL.
  void throw_interrupt() {
    if (interrupt_) throw pybind11::error_already_set(std::move(*interrupt_));
  }

 private:
  [[noreturn]] void rethrow(const pybind11::error_already_set& error, const std::string& what);

  std::optional<pybind11::error_already_set> interrupt_;
  pybind11::object object_;
};

// A store that any thread may be the last to hold.
std::shared_ptr<PythonStore> shared_store(pybind11::object object);

}  // namespace accl::python
