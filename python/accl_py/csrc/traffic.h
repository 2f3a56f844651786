// Traffic as a dict.
#pragma once

#include <pybind11/pybind11.h>

#include "accl/schedule.h"

namespace accl::python {

inline pybind11::dict to_dict(const Traffic& t) {
  pybind11::dict d;
  d["messages_sent"] = t.messages_sent;
  d["bytes_sent"] = t.bytes_sent;
  d["messages_received"] = t.messages_received;
  d["bytes_received"] = t.bytes_received;
  d["bytes_reduced"] = t.bytes_reduced;
  return d;
}

}  // namespace accl::python
