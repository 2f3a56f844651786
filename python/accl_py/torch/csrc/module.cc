// The Python module `accl_py.torch._backend`.
//
// Compiled with the pybind11 that torch ships: classes of torch and ours must live in one type
// registry.
#include <pybind11/chrono.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "device_work.h"
#include "options.h"
#include "work.h"

namespace {

// Holder of objects whose destructor joins threads. Python drops objects with the GIL held, and a
// thread that is to be joined may be waiting for just that GIL. Same layout as c10::intrusive_ptr,
// since torch's bindings hand such pointers to this holder.
template <typename T>
class GilReleasingPtr {
 public:
  using element_type = T;

  GilReleasingPtr() = default;
  GilReleasingPtr(const GilReleasingPtr&) = default;
  GilReleasingPtr(GilReleasingPtr&&) noexcept = default;
  GilReleasingPtr& operator=(const GilReleasingPtr&) = default;
  GilReleasingPtr& operator=(GilReleasingPtr&&) noexcept = default;
  GilReleasingPtr(c10::intrusive_ptr<T> pointer)
      : pointer_(std::move(pointer)) {}  // NOLINT: implicit by design
  explicit GilReleasingPtr(T* fresh)
      : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(fresh)) {}
  ~GilReleasingPtr() {
    if (!pointer_ || PyGILState_Check() == 0) return;
    const pybind11::gil_scoped_release release;
    pointer_.reset();
  }

  T& operator*() const noexcept { return *pointer_; }
  T* operator->() const noexcept { return pointer_.get(); }
  T* get() const noexcept { return pointer_.get(); }
  void reset() noexcept { pointer_.reset(); }
  explicit operator bool() const noexcept { return static_cast<bool>(pointer_); }

 private:
  c10::intrusive_ptr<T> pointer_;
};

}  // namespace

PYBIND11_DECLARE_HOLDER_TYPE(T, GilReleasingPtr<T>, true)

namespace {

using accl::adapter::BackendACCL;
using accl::adapter::GroupOptions;
using accl::adapter::WorkACCL;

using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;

constexpr auto kTimeoutDoc = "Deadline of each call, a timedelta above 0.";

pybind11::dict as_dict(const accl::WorkReport& report) {
  pybind11::dict dict;
  dict["algorithm"] = report.algorithm;
  dict["protocol"] = report.protocol;
  dict["chunk_bytes"] = report.chunk_bytes;
  dict["messages_sent"] = report.traffic.messages_sent;
  dict["bytes_sent"] = report.traffic.bytes_sent;
  dict["messages_received"] = report.traffic.messages_received;
  dict["bytes_received"] = report.traffic.bytes_received;
  dict["bytes_reduced"] = report.traffic.bytes_reduced;
  return dict;
}

pybind11::dict as_dict(const accl::Statistics& statistics) {
  pybind11::dict dict;
  dict["works_posted"] = statistics.works_posted;
  dict["works_completed"] = statistics.works_completed;
  dict["works_failed"] = statistics.works_failed;
  dict["bytes_sent"] = statistics.traffic.bytes_sent;
  dict["bytes_received"] = statistics.traffic.bytes_received;
  dict["staging_bytes"] = statistics.staging_bytes;
  return dict;
}

void bind_options(pybind11::module_& module) {
  const auto copy = [](const GroupOptions& self) { return accl::adapter::copy_of(self); };
  pybind11::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(
      module, "Options", "Options of a process group of the accl backend.")
      .def(pybind11::init([](std::chrono::milliseconds timeout, std::string rules) {
             auto options = c10::make_intrusive<GroupOptions>(timeout);
             options->rules = std::move(rules);
             return options;
           }),
           pybind11::arg("timeout") = kBackendDefaultTimeout, pybind11::arg("rules") = "")
      .def_readwrite("timeout", &GroupOptions::timeout, kTimeoutDoc)
      .def_readwrite("rules", &GroupOptions::rules,
                     "Path of a rules file for this group; empty: the file that ACCL_RULES names, "
                     "else the defaults.")
      .def_readwrite("is_high_priority_stream", &GroupOptions::is_high_priority_stream,
                     "Asynchronous calls with CUDA tensors run on a stream of high priority.")
      .def_readwrite("blocking", &GroupOptions::blocking,
                     "False: making the CUDA part returns while NCCL still connects.")
      .def_readwrite("min_channels", &GroupOptions::min_channels,
                     "NCCL's least number of channels (minCTAs), 1 to 64; 0: NCCL's choice.")
      .def_readwrite("max_channels", &GroupOptions::max_channels,
                     "NCCL's largest number of channels (maxCTAs), 1 to 64; 0: NCCL's choice.")
      .def_readwrite("cga_cluster_size", &GroupOptions::cga_cluster_size,
                     "NCCL's cluster size, 0 to 8; -1: NCCL's choice.")
      .def_readwrite("traffic_class", &GroupOptions::traffic_class,
                     "The network's traffic class, 0 to 255; -1: NCCL's choice.")
      .def_readwrite("network", &GroupOptions::network,
                     "NCCL's network module (\"Socket\", \"IB\"); empty: NCCL's choice.")
      .def_readwrite("split_share", &GroupOptions::split_share,
                     "Groups that are split off share this one's NCCL resources.")
      .def_readwrite("kernels", &GroupOptions::kernels,
                     "Use ACCL-N's own CUDA kernels where the rules ask for them.")
      .def_readwrite(
          "on_fault", &GroupOptions::on_fault,
          "\"exit\": a fault of the CUDA part that no call has reported within 10 s ends "
          "the process, as torch's nccl does; \"raise\": the next call raises.")
      .def("__copy__", copy)
      .def("__deepcopy__",
           [copy](const GroupOptions& self, const pybind11::dict&) { return copy(self); });
}

void bind_work(pybind11::module_& module) {
  pybind11::class_<WorkACCL, c10d::Work, GilReleasingPtr<WorkACCL>>(
      module, "WorkACCL", "Handle on one call of the accl backend.")
      .def(
          "reports",
          [](const WorkACCL& self) {
            pybind11::list list;
            for (const auto& report : self.reports()) list.append(as_dict(report));
            return list;
          },
          "What the engine did: one dict for each engine call, with algorithm, protocol and "
          "traffic in bytes.");
}

void bind_device_work(pybind11::module_& module) {
  using accl::adapter::DeviceWorkACCL;
  pybind11::class_<DeviceWorkACCL, c10d::Work, GilReleasingPtr<DeviceWorkACCL>>(
      module, "DeviceWorkACCL", "Handle on one call of the accl backend with CUDA tensors.")
      .def(
          "reports",
          [](const DeviceWorkACCL& self) {
            const auto report = self.report();
            pybind11::dict dict;
            dict["engine"] = std::string(accl::name_of(self.engine()));
            dict["algorithm"] = report.algorithm;
            dict["protocol"] = report.protocol;
            pybind11::list list;
            list.append(dict);
            return list;
          },
          "A dict with engine (nccl or cuda), and algorithm and protocol where a rule gave them.");
}

pybind11::dict as_dict(const accl::DeviceStatistics& statistics) {
  pybind11::dict dict;
  dict["enqueued"] = statistics.enqueued;
  dict["completed"] = statistics.completed;
  dict["failed"] = statistics.failed;
  dict["captured"] = statistics.captured;
  dict["nccl_calls"] = statistics.nccl_calls;
  dict["kernel_launches"] = statistics.kernel_launches;
  return dict;
}

const accl::DeviceCommunicator& device_part(const BackendACCL& backend,
                                            std::shared_ptr<accl::DeviceCommunicator>& held) {
  held = backend.device_communicator();
  TORCH_CHECK(held != nullptr,
              "accl: the group has no CUDA part yet; it is made at the first call with CUDA "
              "tensors, or by init_process_group(device_id=...).");
  return *held;
}

void bind_backend(pybind11::module_& module) {
  pybind11::class_<BackendACCL, c10d::Backend, GilReleasingPtr<BackendACCL>>(
      module, "ProcessGroupACCL", "The torch.distributed backend over ACCL-N's communicator.")
      .def(pybind11::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             const c10d::Backend::Options& options) {
             auto own = accl::adapter::copy_of(options);
             const pybind11::gil_scoped_release
                 release;  // waits for the other ranks; a store may be Python's
             return GilReleasingPtr<BackendACCL>(
                 c10::make_intrusive<BackendACCL>(store, rank, size, std::move(own)));
           }),
           pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"),
           pybind11::arg("options"))
      .def_property_readonly("options", &BackendACCL::options_copy,
                             "A copy of the group's options.")
      .def("_set_default_timeout", &BackendACCL::setTimeout, pybind11::arg("timeout"), NoGil())
      .def(
          "_get_error", [](BackendACCL& self) { return static_cast<int>(self.getError()); },
          "0 while healthy; 1 a timeout, 2 an error here, 3 an error of a peer.")
      .def(
          "perform_nocolor_split", [](BackendACCL&, const pybind11::object&) {},
          pybind11::arg("device"),
          "Nothing: ranks outside of a new group take no part in making it.")
      .def(
          "statistics",
          [](const BackendACCL& self) { return as_dict(self.communicator().statistics()); },
          "Counters of the group since it was made.")
      .def(
          "device_statistics",
          [](const BackendACCL& self) {
            std::shared_ptr<accl::DeviceCommunicator> held;
            return as_dict(device_part(self, held).statistics());
          },
          "Counters of the group's CUDA part since it was made.")
      .def(
          "kernels_unavailable",
          [](const BackendACCL& self) {
            std::shared_ptr<accl::DeviceCommunicator> held;
            return device_part(self, held).kernels_unavailable();
          },
          "Why ACCL-N's own CUDA kernels are not used in this group; empty where they are.")
      .def(
          "device_trace_json",
          [](const BackendACCL& self) {
            std::shared_ptr<accl::DeviceCommunicator> held;
            return device_part(self, held).trace_json();
          },
          NoGil(), "The last operations of the group's CUDA part as JSON.")
      .def(
          "trace_json", [](const BackendACCL& self) { return self.communicator().trace_json(); },
          NoGil(), "The last operations of the group as JSON.");
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  module.doc() = "The accl backend of torch.distributed; made by accl_py.torch.load.";
  module.attr("BUILT_FOR_TORCH") = TORCH_VERSION;
  pybind11::module_::import("torch._C._distributed_c10d");  // registers the base classes
  bind_options(module);
  bind_work(module);
  bind_device_work(module);
  bind_backend(module);
}
