// PythonStore: a Python object (accl_py.stores.StoreAdapter) as a Store. Takes the GIL for each call.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "accl/store.h"

namespace accl::python {

class PythonStore final : public Store {
 public:
  explicit PythonStore(pybind11::object object) : object_(std::move(object)) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  pybind11::object object_;
};

}  // namespace accl::python
