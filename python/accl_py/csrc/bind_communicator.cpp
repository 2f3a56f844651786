// communicator.h: communicators, calls, works, and timed loops.
//
// Every function that may wait releases the GIL and looks for signals now and then, so that Ctrl-C
// works.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "accl/communicator.h"
#include "accl/error.h"
#include "bindings.h"
#include "exit_gate.h"
#include "python_store.h"
#include "reports.h"
#include "waiting.h"
#include "words.h"

namespace accl::python {

namespace {

using Clock = std::chrono::steady_clock;

// A work and what must stay alive until it is complete.
class PyWork {
 public:
  PyWork(std::shared_ptr<Work> work, py::object keep)
      : work_(std::move(work)), keep_(std::move(keep)) {}
  PyWork(PyWork&&) = default;
  PyWork& operator=(PyWork&&) = delete;

  // Dropped before its time: the buffers stay until the engine is done with them.
  ~PyWork() {
    if (!work_ || work_->completed()) return;
    PyObject* kept = keep_.release().ptr();
    work_->on_complete([kept] { with_gil([kept] { Py_DECREF(kept); }); });
  }

  bool wait(std::optional<double> seconds) { return wait_seconds(*work_, seconds); }
  void on_complete(py::function done) {
    PyObject* function = done.release().ptr();
    work_->on_complete([function] {
      with_gil([function] {
        try {
          py::reinterpret_steal<py::function>(function)();
        } catch (py::error_already_set& error) {
          error.discard_as_unraisable("a completion callback of accl_py");
        }
      });
    });
  }
  Work& work() const { return *work_; }

 private:
  std::shared_ptr<Work> work_;
  py::object keep_;
};

// Leaves without the GIL: other ranks may be threads of this process.
class PyCommunicator {
 public:
  explicit PyCommunicator(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;
  ~PyCommunicator() {
    const Released nogil;
    communicator_.reset();
  }
  Communicator& get() const { return *communicator_; }

  PyWork post(const Call& call, py::object keep) const {
    std::shared_ptr<Work> work;
    {
      const Released nogil;
      work = communicator_->post(call);
    }
    return {std::move(work), std::move(keep)};
  }
  PyWork post_group(const std::vector<Call>& calls, py::object keep) const {
    std::shared_ptr<Work> work;
    {
      const Released nogil;
      work = communicator_->post_group(calls);
    }
    return {std::move(work), std::move(keep)};
  }

  // Posts and waits. Returns the source rank (of a recv; else -1).
  int run(const Call& call, py::object keep) const {
    std::shared_ptr<Work> work;
    {
      const Released nogil;
      work = communicator_->post(call);
      if (work->wait(kBetweenSignals)) return work->source_rank();
    }
    PyWork waiting(std::move(work), std::move(keep));
    look_for_signals();
    waiting.wait(std::nullopt);
    return waiting.work().source_rank();
  }

  // all_reduce in place of an array that lies as the core needs it: C-contiguous, aligned,
  // writable, of a dtype that the buffer protocol can name. False, and nothing done, for all
  // others. Saves the several microseconds that the general way spends in Python.
  bool all_reduce_in_place(py::object x, ReduceOp op) const {
    Py_buffer view;
    if (PyObject_GetBuffer(x.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT) !=
        0) {
      PyErr_Clear();
      return false;
    }
    const auto dtype = dtype_of_format(view.format, view.itemsize);
    Call call;
    call.op = op;
    call.input.data = call.output.data = view.buf;
    if (dtype) {
      call.dtype = *dtype;
      call.count = static_cast<std::size_t>(view.len / view.itemsize);
    }
    const bool aligned =
        dtype &&
        reinterpret_cast<std::uintptr_t>(view.buf) % static_cast<std::size_t>(view.itemsize) == 0;
    PyBuffer_Release(&view);  // `x` itself keeps the memory
    if (!aligned) return false;
    run(call, std::move(x));
    return true;
  }

 private:
  // A struct format of one native element ("f", "l", "Zd"); none for anything else.
  static std::optional<DType> dtype_of_format(const char* format, Py_ssize_t bytes) {
    const std::string_view word = format == nullptr ? "B" : format;
    if (word == "Zf") return DType::kComplex64;
    if (word == "Zd") return DType::kComplex128;
    if (word.size() != 1) return std::nullopt;
    const auto of_size = [&](DType one, DType two, DType four,
                             DType eight) -> std::optional<DType> {
      switch (bytes) {
        case 1:
          return one;
        case 2:
          return two;
        case 4:
          return four;
        case 8:
          return eight;
        default:
          return std::nullopt;
      }
    };
    const char c = word[0];
    if (c == '?') return DType::kBool;
    if (c == 'e') return DType::kFloat16;
    if (c == 'f') return DType::kFloat32;
    if (c == 'd') return DType::kFloat64;
    if (std::string_view("bhilq").find(c) != std::string_view::npos) {
      return of_size(DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64);
    }
    if (std::string_view("BHILQ").find(c) != std::string_view::npos) {
      return of_size(DType::kUint8, DType::kUint16, DType::kUint32, DType::kUint64);
    }
    return std::nullopt;
  }

  std::shared_ptr<Communicator> communicator_;
};

// The same call, again and again.
class PreparedCall {
 public:
  PreparedCall(std::shared_ptr<PyCommunicator> communicator, Call call, py::object keep)
      : communicator_(std::move(communicator)), call_(std::move(call)), keep_(std::move(keep)) {
    communicator_->get().choice_for(call_);  // a bad call is refused here
  }

  py::dict run() {
    const PyWork work(post(), keep_);  // keeps the arrays where Ctrl-C ends the wait
    wait_for(work.work());
    return to_dict(work.work().report());
  }

  // Seconds of `iterations` calls, back to back.
  double time(std::int64_t iterations) {
    const auto begin = Clock::now();
    repeat(iterations, [](std::int64_t) {});
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  std::vector<double> time_each(std::int64_t iterations) {
    std::vector<double> seconds;
    seconds.reserve(static_cast<std::size_t>(std::max<std::int64_t>(iterations, 0)));
    auto begin = Clock::now();
    repeat(iterations, [&](std::int64_t) {
      const auto now = Clock::now();
      seconds.push_back(std::chrono::duration<double>(now - begin).count());
      begin = now;
    });
    return seconds;
  }

 private:
  std::shared_ptr<Work> post() const {
    const Released nogil;
    return communicator_->get().post(call_);
  }

  template <class After>
  void repeat(std::int64_t iterations, After after) {
    if (iterations < 0)
      throw InvalidArgument("iterations is " + std::to_string(iterations) +
                            "; expected 0 or more.");
    constexpr std::int64_t kBatch = 256;  // calls between two looks for signals
    for (std::int64_t done = 0; done < iterations;) {
      const std::int64_t batch = std::min(iterations - done, kBatch);
      const std::shared_ptr<Work> slow = run_batch(batch, done, after);
      if (slow) {
        const PyWork waiting(slow, keep_);
        wait_for(waiting.work());
        after(done - 1);
      }
      look_for_signals();
    }
  }

  // Runs calls without the GIL; hands out one that takes long, so that signals can be looked for.
  template <class After>
  std::shared_ptr<Work> run_batch(std::int64_t batch, std::int64_t& done, After after) {
    const Released nogil;
    Communicator& communicator = communicator_->get();
    for (std::int64_t i = 0; i < batch; ++i) {
      auto work = communicator.post(call_);
      ++done;
      if (!work->wait(kBetweenSignals)) return work;
      after(done - 1);
    }
    return nullptr;
  }

  std::shared_ptr<PyCommunicator> communicator_;
  Call call_;
  py::object keep_;
};

std::shared_ptr<PyCommunicator> create(py::object store, int rank, int size, double timeout,
                                       const std::string& name, std::shared_ptr<Rules> rules,
                                       const std::string& rules_file) {
  CommunicatorOptions options;
  options.timeout = milliseconds(timeout);
  options.name = name;
  options.rules = std::move(rules);
  options.rules_file = rules_file;
  PythonStore adapter(std::move(store));
  std::shared_ptr<Communicator> communicator;
  try {
    const Released nogil;
    communicator = Communicator::create(adapter, rank, size, options);
  } catch (const Error&) {
    adapter.throw_interrupt();  // Ctrl-C inside the store, which the core takes for a failure of
                                // the store
    throw;
  }
  return std::make_shared<PyCommunicator>(std::move(communicator));
}

using Blocks = std::vector<std::pair<std::uintptr_t, std::size_t>>;

Buffer buffer_of(std::uintptr_t address, const Blocks& blocks) {
  Buffer buffer{reinterpret_cast<void*>(address), {}};
  for (const auto& [block, bytes] : blocks)
    buffer.blocks.emplace_back(reinterpret_cast<void*>(block), bytes);
  return buffer;
}

Call make_call(Collective collective, std::uintptr_t input, std::uintptr_t output,
               std::size_t count, DType dtype, ReduceOp op, double factor, int root, int peer,
               int tag, std::vector<std::size_t> counts, std::vector<std::size_t> receive_counts,
               const std::string& algorithm, const std::string& protocol, std::size_t chunk_bytes,
               double timeout, bool background, const Blocks& input_blocks,
               const Blocks& output_blocks) {
  return {collective,
          buffer_of(input, input_blocks),
          buffer_of(output, output_blocks),
          count,
          dtype,
          op,
          factor,
          root,
          peer,
          tag,
          std::move(counts),
          std::move(receive_counts),
          {algorithm, protocol, 0, chunk_bytes},
          milliseconds(timeout),
          background};
}

void bind_call(py::module_& module) {
  py::class_<Call>(
      module, "Call",
      "One collective call; addresses as integers, timeout in seconds (0: the communicator's).")
      .def(py::init(&make_call), py::arg("collective"), py::arg("input") = 0, py::arg("output") = 0,
           py::arg("count") = 0, py::arg("dtype") = DType::kUint8, py::arg("op") = ReduceOp::kSum,
           py::arg("factor") = 1.0, py::arg("root") = 0, py::arg("peer") = 0, py::arg("tag") = 0,
           py::arg("counts") = std::vector<std::size_t>{},
           py::arg("receive_counts") = std::vector<std::size_t>{}, py::arg("algorithm") = "",
           py::arg("protocol") = "", py::arg("chunk_bytes") = 0, py::arg("timeout") = 0.0,
           py::arg("background") = false, py::arg("input_blocks") = Blocks{},
           py::arg("output_blocks") = Blocks{});
}

void bind_work(py::module_& module) {
  py::class_<PyWork>(module, "Work")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none(),
           "Waits (seconds; None: until the call's own deadline). False where the time passed "
           "first. Raises the work's error.")
      .def("done", [](const PyWork& w) { return w.work().completed(); })
      .def("failed", [](const PyWork& w) { return w.work().failed(); })
      .def("on_complete", &PyWork::on_complete)
      .def_property_readonly("sequence", [](const PyWork& w) { return w.work().sequence(); })
      .def_property_readonly("source_rank", [](const PyWork& w) { return w.work().source_rank(); })
      .def("report", [](const PyWork& w) { return to_dict(w.work().report()); });
}

py::dict statistics_of(const PyCommunicator& c) {
  const Statistics s = c.get().statistics();
  py::dict d;
  d["works_posted"] = s.works_posted;
  d["works_completed"] = s.works_completed;
  d["works_failed"] = s.works_failed;
  d["traffic"] = to_dict(s.traffic);
  d["staging_bytes"] = s.staging_bytes;
  return d;
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::module_::import("atexit").attr("register")(py::cpp_function([] { ExitGate::get().close(); }));
  module.attr("ANY_SOURCE") = kAnySource;
  bind_call(module);
  bind_work(module);
  py::class_<PyCommunicator, std::shared_ptr<PyCommunicator>>(module, "Communicator")
      .def_static("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
                  py::arg("timeout"), py::arg("name"), py::arg("rules") = py::none(),
                  py::arg("rules_file") = "")
      .def_property_readonly("rank", [](const PyCommunicator& c) { return c.get().rank(); })
      .def_property_readonly("size", [](const PyCommunicator& c) { return c.get().size(); })
      .def_property_readonly("nodes", [](const PyCommunicator& c) { return c.get().nodes(); })
      .def_property_readonly("name", [](const PyCommunicator& c) { return c.get().name(); })
      .def_property(
          "timeout",
          [](const PyCommunicator& c) {
            return static_cast<double>(c.get().timeout().count()) / 1e3;
          },
          [](const PyCommunicator& c, double seconds) {
            c.get().set_timeout(milliseconds(seconds));
          })
      .def_property_readonly(
          "rules",
          [](const PyCommunicator& c) { return std::const_pointer_cast<Rules>(c.get().rules()); })
      .def("post", &PyCommunicator::post, py::arg("call"), py::arg("keep"))
      .def("post_group", &PyCommunicator::post_group, py::arg("calls"), py::arg("keep"))
      .def("run", &PyCommunicator::run, py::arg("call"), py::arg("keep"))
      .def("all_reduce_in_place", &PyCommunicator::all_reduce_in_place, py::arg("x"), py::arg("op"))
      .def("choice_for", [](const PyCommunicator& c,
                            const Call& call) { return to_dict(c.get().choice_for(call)); })
      .def(
          "abort",
          [](const PyCommunicator& c, const std::string& reason) { c.get().abort(reason); },
          py::call_guard<Released>())
      .def(
          "shutdown", [](const PyCommunicator& c) { c.get().shutdown(); },
          py::call_guard<Released>())
      .def(
          "raise_error",
          [](const PyCommunicator& c) {
            if (const auto error = c.get().error()) std::rethrow_exception(error);
          },
          "Raises the error that ended the communicator, if it has ended.")
      .def("statistics", &statistics_of)
      .def("trace_json", [](const PyCommunicator& c) { return c.get().trace_json(); });
  py::class_<PreparedCall>(module, "PreparedCall",
                           "One call, to be made again and again; for measuring.")
      .def(py::init<std::shared_ptr<PyCommunicator>, Call, py::object>(), py::arg("communicator"),
           py::arg("call"), py::arg("keep"))
      .def("run", &PreparedCall::run, "Makes the call once; returns what it used.")
      .def("time", &PreparedCall::time, py::arg("iterations"),
           "Seconds, in all, of so many calls back to back.")
      .def("time_each", &PreparedCall::time_each, py::arg("iterations"), "Seconds of each call.");
}

}  // namespace accl::python
