// device.h: device communicators, their works, and repeated calls. Streams are integers.
//
// The GIL is released wherever a lock of the core may be taken: who holds that lock may be waiting
// for the store, and the store is Python.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accl/device.h"
#include "accl/error.h"
#include "bindings.h"
#include "exit_gate.h"
#include "python_store.h"
#include "reports.h"
#include "waiting.h"

namespace accl::python {

namespace {

using Clock = std::chrono::steady_clock;

DeviceStream stream_of(std::uintptr_t stream) { return reinterpret_cast<DeviceStream>(stream); }

OnFault on_fault_of(const std::string& word) {
  if (word == "raise") return OnFault::kRaise;
  if (word == "exit") return OnFault::kExit;
  throw InvalidArgument("on_fault is '" + word + "'; expected raise or exit.");
}

DeviceOptions make_options(int device, double timeout, const std::string& name,
                           std::shared_ptr<Rules> rules, const std::string& rules_file,
                           bool blocking, int min_channels, int max_channels, int cga_cluster_size,
                           int traffic_class, const std::string& network, bool split_share,
                           bool kernels, const std::string& on_fault) {
  DeviceOptions options;
  options.timeout = milliseconds(timeout);
  options.name = name;
  options.rules = std::move(rules);
  options.rules_file = rules_file;
  options.device = device;
  options.blocking = blocking;
  options.min_channels = min_channels;
  options.max_channels = max_channels;
  options.cga_cluster_size = cga_cluster_size;
  options.traffic_class = traffic_class;
  options.network = network;
  options.split_share = split_share;
  options.kernels = kernels;
  options.on_fault = on_fault_of(on_fault);
  return options;
}

// Dropped without the GIL: the last holder of a work or communicator may end its core.
template <class T>
class Shared {
 public:
  explicit Shared(std::shared_ptr<T> pointer) : pointer_(std::move(pointer)) {}
  Shared(Shared&&) = default;
  Shared& operator=(Shared&&) = delete;
  ~Shared() {
    if (pointer_ == nullptr) return;
    const Released nogil;
    pointer_.reset();
  }
  T& get() const { return *pointer_; }

 private:
  std::shared_ptr<T> pointer_;
};

class PyDeviceWork : public Shared<DeviceWork> {
 public:
  using Shared::Shared;

  bool wait(std::optional<double> seconds) { return wait_seconds(get(), seconds); }
  void order(std::uintptr_t stream) {
    const Released nogil;
    get().order(stream_of(stream));
  }
  bool done() {
    const Released nogil;
    return get().completed();
  }
  void raise_error() {
    if (const auto error = get().error()) std::rethrow_exception(error);
  }
  py::dict report() {
    py::dict d = to_dict(get().report());
    d["engine"] = std::string(name_of(get().engine()));
    return d;
  }
};

class PyDeviceCommunicator : public Shared<DeviceCommunicator> {
 public:
  using Shared::Shared;

  void run(const Call& call, std::uintptr_t stream) {
    const Released nogil;
    get().enqueue(call, stream_of(stream));
  }
  PyDeviceWork enqueue(const Call& call, std::uintptr_t stream) {
    const Released nogil;
    return PyDeviceWork(get().enqueue(call, stream_of(stream)));
  }
  PyDeviceWork enqueue_group(const std::vector<Call>& calls, std::uintptr_t stream) {
    const Released nogil;
    return PyDeviceWork(get().enqueue_group(calls, stream_of(stream)));
  }
  py::dict choice_for(const Call& call) {
    const auto [engine, choice] = get().choice_for(call);
    py::dict d = to_dict(choice);
    d["engine"] = std::string(name_of(engine));
    return d;
  }
  std::shared_ptr<PyDeviceCommunicator> split(int color, int key, const DeviceOptions& options) {
    std::shared_ptr<DeviceCommunicator> child;
    {
      const Released nogil;
      child = get().split(color, key, options);
    }
    if (child == nullptr) return nullptr;
    return std::make_shared<PyDeviceCommunicator>(std::move(child));
  }
  void raise_error() {
    std::exception_ptr error;
    {
      const Released nogil;
      error = get().error();
    }
    if (error) std::rethrow_exception(error);
  }
  py::dict statistics() {
    DeviceStatistics s;
    {
      const Released nogil;
      s = get().statistics();
    }
    py::dict d;
    d["enqueued"] = s.enqueued;
    d["completed"] = s.completed;
    d["failed"] = s.failed;
    d["captured"] = s.captured;
    d["nccl_calls"] = s.nccl_calls;
    d["kernel_launches"] = s.kernel_launches;
    return d;
  }
};

std::shared_ptr<PyDeviceCommunicator> create(py::object store, int rank, int size,
                                             const DeviceOptions& options) {
  const std::shared_ptr<PythonStore> adapter = shared_store(std::move(store));
  std::shared_ptr<DeviceCommunicator> communicator;
  try {
    const Released nogil;
    communicator = DeviceCommunicator::create(adapter, rank, size, options);
  } catch (const Error&) {
    adapter->throw_interrupt();  // Ctrl-C inside the store
    throw;
  }
  return std::make_shared<PyDeviceCommunicator>(std::move(communicator));
}

// The same call, again and again, on one stream.
class PreparedDeviceCall {
 public:
  PreparedDeviceCall(std::shared_ptr<PyDeviceCommunicator> communicator, Call call,
                     std::uintptr_t stream, py::object keep)
      : communicator_(std::move(communicator)),
        call_(std::move(call)),
        stream_(stream_of(stream)),
        keep_(std::move(keep)) {
    communicator_->get().choice_for(call_);  // a bad call is refused here
  }

  // Puts so many calls on the stream. Returns the last one's work; none for 0 calls.
  std::optional<PyDeviceWork> enqueue(std::int64_t iterations) {
    if (iterations < 0)
      throw InvalidArgument("iterations is " + std::to_string(iterations) +
                            "; expected 0 or more.");
    constexpr std::int64_t kBatch = 256;  // calls between two looks for signals
    std::shared_ptr<DeviceWork> last;
    for (std::int64_t done = 0; done < iterations;) {
      {
        const Released nogil;
        for (const auto end = std::min(iterations, done + kBatch); done < end; ++done)
          last = communicator_->get().enqueue(call_, stream_);
      }
      look_for_signals();
    }
    if (last == nullptr) return std::nullopt;
    return std::optional<PyDeviceWork>(std::in_place, std::move(last));
  }

  py::dict run() {
    auto work = enqueue(1);
    work->wait(std::nullopt);
    return work->report();
  }

  double time(std::int64_t iterations) {
    const auto begin = Clock::now();
    if (auto work = enqueue(iterations)) work->wait(std::nullopt);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  std::vector<double> time_each(std::int64_t iterations) {
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < iterations; ++i) seconds.push_back(time(1));
    return seconds;
  }

 private:
  std::shared_ptr<PyDeviceCommunicator> communicator_;
  Call call_;
  DeviceStream stream_;
  py::object keep_;
};

void bind_options(py::module_& module) {
  py::class_<DeviceOptions>(module, "DeviceOptions", "See accl/device.h; timeout in seconds.")
      .def(py::init(&make_options), py::arg("device"), py::arg("timeout"), py::arg("name"),
           py::arg("rules") = py::none(), py::arg("rules_file") = "", py::arg("blocking") = true,
           py::arg("min_channels") = 0, py::arg("max_channels") = 0,
           py::arg("cga_cluster_size") = -1, py::arg("traffic_class") = -1, py::arg("network") = "",
           py::arg("split_share") = false, py::arg("kernels") = true,
           py::arg("on_fault") = "raise");
}

void bind_work(py::module_& module) {
  py::class_<PyDeviceWork>(module, "DeviceWork")
      .def("wait", &PyDeviceWork::wait, py::arg("timeout") = py::none(),
           "Blocks the host until the GPU is done (seconds; None: until the call's own deadline). "
           "False where the time passed first. Raises the work's error.")
      .def("order", &PyDeviceWork::order, py::arg("stream"),
           "What is put on the stream from now on runs after this work.")
      .def("done", &PyDeviceWork::done)
      .def("raise_error", &PyDeviceWork::raise_error)
      .def_property_readonly("sequence", [](const PyDeviceWork& w) { return w.get().sequence(); })
      .def("report", &PyDeviceWork::report);
}

void bind_prepared(py::module_& module) {
  py::class_<PreparedDeviceCall>(module, "PreparedDeviceCall",
                                 "One call, to be made again and again on one stream.")
      .def(py::init<std::shared_ptr<PyDeviceCommunicator>, Call, std::uintptr_t, py::object>(),
           py::arg("communicator"), py::arg("call"), py::arg("stream"), py::arg("keep"))
      .def("enqueue", &PreparedDeviceCall::enqueue, py::arg("iterations"),
           "Puts so many calls on the stream and does not wait; the work of the last one.")
      .def("run", &PreparedDeviceCall::run,
           "Makes the call once and waits for the GPU; returns what it used.")
      .def("time", &PreparedDeviceCall::time, py::arg("iterations"),
           "Seconds on the host, in all, of so many calls back to back, until the GPU is done.")
      .def("time_each", &PreparedDeviceCall::time_each, py::arg("iterations"),
           "Seconds of each of so many calls, each waited for.");
}

std::optional<std::string> unavailable() {
  std::string why;
  if (DeviceCommunicator::available(&why)) return std::nullopt;
  return why;
}

}  // namespace

void bind_device(py::module_& module) {
  bind_options(module);
  bind_work(module);
  using Self = PyDeviceCommunicator;
  py::class_<Self, std::shared_ptr<Self>>(module, "DeviceCommunicator")
      .def_static("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
                  py::arg("options"))
      .def_static("unavailable", &unavailable, py::call_guard<Released>(),
                  "Why create() cannot succeed here; None where it may.")
      .def_property_readonly("rank", [](const Self& c) { return c.get().rank(); })
      .def_property_readonly("size", [](const Self& c) { return c.get().size(); })
      .def_property_readonly("nodes", [](const Self& c) { return c.get().nodes(); })
      .def_property_readonly("device", [](const Self& c) { return c.get().device(); })
      .def_property_readonly("name", [](const Self& c) { return c.get().name(); })
      .def_property(
          "timeout",
          [](const Self& c) { return static_cast<double>(c.get().timeout().count()) / 1e3; },
          [](const Self& c, double seconds) { c.get().set_timeout(milliseconds(seconds)); })
      .def_property_readonly(
          "rules", [](const Self& c) { return std::const_pointer_cast<Rules>(c.get().rules()); })
      .def_property_readonly("nccl_version", [](const Self& c) { return c.get().nccl_version(); })
      .def_property_readonly("kernels_unavailable",
                             [](const Self& c) { return c.get().kernels_unavailable(); })
      .def(
          "ready", [](const Self& c) { return c.get().ready(); }, py::call_guard<Released>())
      .def("run", &Self::run, py::arg("call"), py::arg("stream"))
      .def("enqueue", &Self::enqueue, py::arg("call"), py::arg("stream"))
      .def("enqueue_group", &Self::enqueue_group, py::arg("calls"), py::arg("stream"))
      .def(
          "follow",
          [](const Self& c, std::uintptr_t stream, std::uintptr_t after) {
            c.get().follow(stream_of(stream), stream_of(after));
          },
          py::arg("stream"), py::arg("after"), py::call_guard<Released>())
      .def("choice_for", &Self::choice_for, py::arg("call"))
      .def("split", &Self::split, py::arg("color"), py::arg("key"), py::arg("options"))
      .def(
          "abort", [](const Self& c, const std::string& reason) { c.get().abort(reason); },
          py::arg("reason"), py::call_guard<Released>())
      .def(
          "shutdown", [](const Self& c) { c.get().shutdown(); }, py::call_guard<Released>())
      .def("raise_error", &Self::raise_error,
           "Raises the error that ended the communicator, if it has ended.")
      .def("statistics", &Self::statistics)
      .def(
          "trace_json", [](const Self& c) { return c.get().trace_json(); },
          py::call_guard<Released>());
  bind_prepared(module);
}

}  // namespace accl::python
