// One c10d call on its way to the engine: filled in by the methods of collectives.cc, posted by
// BackendACCL::launch().
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "accl/communicator.h"
#include "tensors.h"

namespace accl::adapter {

struct Request {
  Request(c10d::OpType type_, const char* title_, std::chrono::milliseconds timeout_, bool async_)
      : type(type_), title(title_), timeout(timeout_), async(async_) {}

  // "all_reduce" of the title "accl:all_reduce".
  std::string name() const { return title + sizeof("accl:") - 1; }
  // How errors call a tensor of this call: "accl all_reduce: input".
  std::string tensor_name(const std::string& role) const { return "accl " + name() + ": " + role; }

  c10d::OpType type;
  const char* title;                  // of the profiler's row
  std::chrono::milliseconds timeout;  // c10d::kUnsetTimeout: the group's
  bool async;                         // false: the caller waits at once
  std::vector<at::Tensor> inputs{};   // for the profiler
  std::vector<at::Tensor> results{};  // of result() and of the future
  Staging staging{};
  std::vector<Call> calls{};
};

}  // namespace accl::adapter
