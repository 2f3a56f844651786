// rules.h
#include <pybind11/stl.h>

#include <memory>

#include "accl/rules.h"
#include "bindings.h"
#include "words.h"

namespace accl::python {

void bind_rules(py::module_& module) {
  py::class_<Rule>(module, "Rule", "One row of a rules file.")
      .def_property_readonly("engine", [](const Rule& r) { return name_of(r.engine); })
      .def_property_readonly("collective", [](const Rule& r) { return name_of(r.collective); })
      .def_readonly("min_bytes", &Rule::min_bytes)
      .def_property_readonly("max_bytes",
                             [](const Rule& r) -> py::object {
                               return r.max_bytes == kAnyBytes ? py::object(py::none())
                                                               : py::int_(r.max_bytes);
                             })
      .def_readonly("nodes", &Rule::nodes)
      .def_readonly("ranks", &Rule::ranks)
      .def_readonly("pipe_ops", &Rule::pipe_ops)
      .def_property_readonly("algorithm", [](const Rule& r) { return r.choice.algorithm; })
      .def_property_readonly("protocol", [](const Rule& r) { return r.choice.protocol; })
      .def_property_readonly("channels", [](const Rule& r) { return r.choice.channels; })
      .def_property_readonly("chunk_bytes", [](const Rule& r) { return r.choice.chunk_bytes; })
      .def_readonly("line", &Rule::line)
      .def("format", &Rules::format, "The row as a rules file spells it.")
      .def("__repr__", [](const Rule& r) { return "<Rule " + Rules::format(r) + ">"; });

  py::class_<Rules, std::shared_ptr<Rules>>(module, "Rules",
                                            "A rules file: the table from calls to algorithms.")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& name) {
            return std::make_shared<Rules>(Rules::parse(text, name));
          },
          py::arg("text"), py::arg("name") = "<text>",
          "Rules of a text; RulesError names line, value and accepted values.")
      .def_static(
          "load",
          [](const std::string& path) { return std::make_shared<Rules>(Rules::load(path)); },
          py::arg("path"), "Rules of a file; RulesError as parse, and where it cannot be read.")
      .def_static(
          "defaults", [] { return std::make_shared<Rules>(Rules::defaults()); },
          "The built-in rules.")
      .def_static(
          "defaults_text", [] { return Rules::defaults_text(); }, "The built-in rules as a file.")
      .def(
          "match",
          [](const Rules& rules, const std::string& collective, std::uint64_t bytes, int ranks,
             int nodes, const std::string& engine, bool uneven, int pipe_ops) -> py::object {
            const Rule* rule = rules.match({engine_of(engine), collective_of(collective), bytes,
                                            uneven, ranks, nodes, pipe_ops});
            return rule == nullptr ? py::object(py::none()) : py::cast(*rule);
          },
          py::arg("collective"), py::arg("bytes"), py::arg("ranks"), py::arg("nodes") = 1,
          py::arg("engine") = "cpu", py::arg("uneven") = false, py::arg("pipe_ops") = 1,
          "The first rule that matches, or None.")
      .def_property_readonly(
          "rows", [](const Rules& r) { return r.rows(); }, "The rows, first match first.")
      .def_property_readonly("name", &Rules::name,
                             "What messages call it: the path, or the name given.")
      .def_property_readonly(
          "provenance", [](const Rules& r) { return r.provenance(); },
          "Comment lines that say where the rows come from.")
      .def("digest", &Rules::digest, "16 hex digits, equal for files whose rows mean the same.")
      .def("__len__", [](const Rules& r) { return r.rows().size(); })
      .def("__repr__", [](const Rules& r) {
        return "<Rules '" + r.name() + "', " + std::to_string(r.rows().size()) + " rows>";
      });

  module.def(
      "algorithm_words",
      [](const std::string& engine, const std::string& collective) {
        return Rules::algorithm_words(engine_of(engine), collective_of(collective));
      },
      py::arg("engine"), py::arg("collective"),
      "Algorithms that a rules file may name, the default first.");
  module.def(
      "protocol_words",
      [](const std::string& engine) { return Rules::protocol_words(engine_of(engine)); },
      py::arg("engine"), "Protocols that a rules file may name.");
}

}  // namespace accl::python
