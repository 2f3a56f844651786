// schedule.h
#include <pybind11/stl.h>

#include "accl/schedule.h"
#include "bindings.h"
#include "traffic.h"
#include "words.h"

namespace accl::python {

namespace {

std::string_view name_of(BufferKind kind) {
  switch (kind) {
    case BufferKind::kInput:
      return "input";
    case BufferKind::kOutput:
      return "output";
    case BufferKind::kScratch:
      return "scratch";
  }
  return "";
}

void bind_transfers(py::module_& module) {
  py::class_<Place>(module, "Place")
      .def_property_readonly("buffer", [](const Place& p) { return name_of(p.buffer); })
      .def_readonly("offset", &Place::offset);
  py::class_<Send>(module, "Send")
      .def_readonly("peer", &Send::peer)
      .def_readonly("source", &Send::from)
      .def_readonly("bytes", &Send::bytes);
  py::class_<Receive>(module, "Receive")
      .def_readonly("peer", &Receive::peer)
      .def_readonly("target", &Receive::to)
      .def_readonly("bytes", &Receive::bytes);
  py::class_<Reduce>(module, "Reduce")
      .def_readonly("peers", &Reduce::peers)
      .def_readonly("own", &Reduce::own)
      .def_readonly("target", &Reduce::to)
      .def_readonly("bytes", &Reduce::bytes)
      .def_readonly("last", &Reduce::last);
  py::class_<Copy>(module, "Copy")
      .def_readonly("source", &Copy::from)
      .def_readonly("target", &Copy::to)
      .def_readonly("bytes", &Copy::bytes);
  py::class_<Round>(module, "Round")
      .def_readonly("copies", &Round::copies)
      .def_readonly("sends", &Round::sends)
      .def_readonly("receives", &Round::receives)
      .def_readonly("reduces", &Round::reduces);
  py::class_<Loop>(module, "Loop")
      .def_readonly("rounds", &Loop::rounds)
      .def_readonly("repeat", &Loop::repeat)
      .def_readonly("input_stride", &Loop::input_stride)
      .def_readonly("output_stride", &Loop::output_stride);
}

}  // namespace

void bind_schedule(py::module_& module) {
  bind_transfers(module);
  py::class_<Schedule>(module, "Schedule")
      .def_readonly("loops", &Schedule::loops)
      .def_readonly("scratch_bytes", &Schedule::scratch_bytes)
      .def_readonly("piece_bytes", &Schedule::piece_bytes)
      .def("traffic", [](const Schedule& s) { return to_dict(s.traffic()); })
      .def("rounds", &Schedule::rounds);
  py::class_<Algorithm>(module, "Algorithm")
      .def_readonly("name", &Algorithm::name)
      .def_property_readonly("collective",
                             [](const Algorithm& a) { return accl::name_of(a.collective); })
      .def_readonly("uneven", &Algorithm::uneven)
      .def_readonly("multi_hop", &Algorithm::multi_hop)
      .def_readonly("default_chunk_bytes", &Algorithm::default_chunk_bytes)
      .def_readonly("summary", &Algorithm::summary)
      .def("__repr__", [](const Algorithm& a) {
        return "<Algorithm " + std::string(accl::name_of(a.collective)) + "/" +
               std::string(a.name) + ">";
      });
  module.def("algorithms", [](const std::string& collective) {
    const auto rows = algorithms(collective_of(collective));
    return std::vector<Algorithm>(rows.begin(), rows.end());
  });
  module.def(
      "plan",
      [](const std::string& algorithm, const std::string& collective, int rank, int ranks,
         std::size_t block_bytes, std::size_t element_bytes, int root, std::size_t chunk_bytes,
         std::vector<std::size_t> blocks, std::vector<std::size_t> receive_blocks) {
        return plan(algorithm,
                    {collective_of(collective), rank, ranks, root, block_bytes, element_bytes,
                     chunk_bytes, std::move(blocks), std::move(receive_blocks)});
      },
      py::arg("algorithm"), py::arg("collective"), py::arg("rank"), py::arg("ranks"),
      py::arg("block_bytes"), py::arg("element_bytes") = 1, py::arg("root") = 0,
      py::arg("chunk_bytes") = 0, py::arg("blocks") = std::vector<std::size_t>{},
      py::arg("receive_blocks") = std::vector<std::size_t>{});
}

}  // namespace accl::python
