// What a call used, as dicts.
#pragma once

#include <pybind11/pybind11.h>

#include "accl/communicator.h"
#include "traffic.h"

namespace accl::python {

inline pybind11::dict to_dict(const WorkReport& report) {
  pybind11::dict d;
  d["algorithm"] = report.algorithm;
  d["protocol"] = report.protocol;
  d["chunk_bytes"] = report.chunk_bytes;
  d["traffic"] = to_dict(report.traffic);
  return d;
}

inline pybind11::dict to_dict(const Choice& choice) {
  pybind11::dict d;
  d["algorithm"] = choice.algorithm;
  d["protocol"] = choice.protocol;
  d["channels"] = choice.channels;
  d["chunk_bytes"] = choice.chunk_bytes;
  return d;
}

}  // namespace accl::python
