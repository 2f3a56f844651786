// The collectives of the backend: what torch passes, as calls of the engine.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <utility>

#include "backend.h"

namespace accl::adapter {
namespace {

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
};

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr,
              "accl: PREMUL_SUM carries no factor; make it with ReduceOp.PREMUL_SUM(factor).");
  if (!supplement->tensor_factor.defined()) return supplement->double_factor;
  TORCH_CHECK(!supplement->tensor_factor.is_complex(),
              "accl: the factor of PREMUL_SUM is a complex tensor, expected a real number.");
  return supplement->tensor_factor.item<double>();
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAvg};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBand};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBor};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBxor};
    case c10d::ReduceOp::PREMUL_SUM:
      return {ReduceOp::kPremulSum, factor_of(op)};
    case c10d::ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK(
      false, "accl: the reduce operation has the number ", static_cast<int>(op.op_),
      ", expected one of ReduceOp.SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM.");
}

std::size_t elements(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }
std::size_t bytes(const at::Tensor& tensor) { return tensor.nbytes(); }

// Sets dtype and operation of a call that computes.
void set_reduction(Call& call, const Request& request, const at::Tensor& tensor,
                   const c10d::ReduceOp& op) {
  const auto [kind, factor] = reduction_of(op);
  call.dtype = reduced_type(tensor.scalar_type(), request.name());
  call.op = kind;
  call.factor = factor;
  TORCH_CHECK(supports(kind, call.dtype), "accl ", request.name(), ": the operation ",
              name_of(kind), " is not defined for torch.", describe(tensor.scalar_type()), ".");
}

// The one tensor of calls whose list has one for historic reasons.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const Request& request) {
  TORCH_CHECK(tensors.size() == 1, "accl ", request.name(), ": got ", tensors.size(),
              " tensors, expected one.");
  TORCH_CHECK(tensors.front().defined(), "accl ", request.name(), ": the tensor is undefined.");
  return tensors.front();
}

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists,
                                    const Request& request) {
  TORCH_CHECK(lists.size() == 1, "accl ", request.name(), ": got ", lists.size(),
              " lists of tensors, expected one.");
  return lists.front();
}

void require_same_type(const at::Tensor& tensor, const at::Tensor& reference,
                       const std::string& what) {
  TORCH_CHECK(tensor.defined() && tensor.scalar_type() == reference.scalar_type(), what,
              " has dtype torch.", tensor.defined() ? describe(tensor.scalar_type()) : "undefined",
              ", expected torch.", describe(reference.scalar_type()),
              " like the other side of the call.");
}

void require_elements(const at::Tensor& tensor, int64_t expected, const std::string& what,
                      const std::string& why) {
  TORCH_CHECK(tensor.numel() == expected, what, " has ", tensor.numel(), " elements (sizes ",
              tensor.sizes(), "), expected ", expected, ", ", why, ".");
}

std::string numbered(const std::string& role, std::size_t index) {
  return role + " " + std::to_string(index);
}

// A list with one tensor a rank, in logical order.
Buffer list_buffer(Request& request, const std::vector<at::Tensor>& list, bool output) {
  Buffer buffer;
  buffer.blocks.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto what = request.tensor_name(numbered(output ? "output" : "input", i));
    void* memory =
        output ? request.staging.output(list[i], what) : request.staging.input(list[i], what);
    buffer.blocks.emplace_back(memory, bytes(list[i]));
  }
  return buffer;
}

bool equal_sizes(const std::vector<at::Tensor>& list) {
  for (const auto& tensor : list) {
    if (tensor.numel() != list.front().numel()) return false;
  }
  return true;
}

std::vector<std::size_t> counts_of(const std::vector<at::Tensor>& list, std::size_t scale) {
  std::vector<std::size_t> counts;
  for (const auto& tensor : list) counts.push_back(elements(tensor) * scale);
  return counts;
}

// True if `memory` meets a block, other than being exactly block `own`.
bool meets_others(const void* memory, std::size_t size,
                  const std::vector<std::pair<void*, std::size_t>>& blocks, std::size_t own) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i == own && blocks[i].first == memory) continue;
    if (overlaps(memory, size, blocks[i].first, blocks[i].second)) return true;
  }
  return false;
}

constexpr std::size_t kNoOwnBlock = ~std::size_t{0};

char* at_offset(void* memory, std::size_t offset) { return static_cast<char*>(memory) + offset; }

// Elements for each peer of one side of all_to_all_single, from the split sizes of dimension 0.
std::vector<std::size_t> split_counts(const std::vector<int64_t>& splits, const at::Tensor& tensor,
                                      int size, const std::string& what) {
  TORCH_CHECK(tensor.dim() > 0, what, " has no dimensions, expected at least one to split.");
  const int64_t rows = tensor.size(0);
  const auto row = static_cast<std::size_t>(rows == 0 ? 0 : tensor.numel() / rows);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, what, " has ", rows,
                " rows in dimension 0, which do not divide evenly among ", size,
                " ranks; pass split sizes.");
    return std::vector<std::size_t>(static_cast<std::size_t>(size),
                                    static_cast<std::size_t>(rows / size) * row);
  }
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(size), what, " has ", splits.size(),
              " split sizes, expected one for each of the ", size, " ranks.");
  std::vector<std::size_t> counts;
  for (const int64_t split : splits) {
    TORCH_CHECK(split >= 0, what, " has the split size ", split, ", expected 0 or more.");
    counts.push_back(static_cast<std::size_t>(split) * row);
  }
  const auto sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK(sum == rows, what, " has split sizes that add up to ", sum, ", expected ", rows,
              ", the size of dimension 0.");
  return counts;
}

}  // namespace

void BackendACCL::check_root(int64_t root, const Request& request) const {
  TORCH_CHECK(root >= 0 && root < size_, "accl ", request.name(), ": the root is rank ", root,
              ", expected 0 to ", size_ - 1, ".");
}

void BackendACCL::check_length(std::size_t length, const std::string& what) const {
  TORCH_CHECK(length == ranks(), what, " has ", length, " tensors, expected one for each of the ",
              size_, " ranks.");
}

c10::intrusive_ptr<c10d::Work> BackendACCL::broadcast(std::vector<at::Tensor>& tensors,
                                                      const c10d::BroadcastOptions& opts) {
  Request request(c10d::OpType::BROADCAST, "accl:broadcast", opts.timeout, opts.asyncOp);
  const auto& tensor = only(tensors, request);
  check_root(opts.rootRank, request);
  const auto type = moved_type(tensor.scalar_type());
  const auto what = request.tensor_name("tensor");
  Call call;
  call.collective = Collective::kBroadcast;
  call.root = static_cast<int>(opts.rootRank);
  call.dtype = type.dtype;
  call.count = elements(tensor) * type.count;
  if (rank_ == call.root) {
    // The root only reads, but a tensor that others could not write to is refused here too: else
    // this rank would wait for ranks that have refused it.
    require_dense(tensor, what);
    require_writable(tensor, what);
    call.input.data = request.staging.input(tensor, what);
    call.output = call.input;
  } else {
    call.output.data = request.staging.output(tensor, what);
    call.input = call.output;
  }
  request.inputs = request.results = {tensor};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

void BackendACCL::add_all_reduce(Request& request, const at::Tensor& tensor,
                                 const c10d::ReduceOp& op) const {
  Call call;
  call.collective = Collective::kAllReduce;
  call.count = elements(tensor);
  require_dense(tensor, request.tensor_name("tensor"));
  set_reduction(call, request, tensor, op);
  call.output.data = request.staging.in_place(tensor, request.tensor_name("tensor"));
  call.input = call.output;
  request.calls.push_back(std::move(call));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allreduce(std::vector<at::Tensor>& tensors,
                                                      const c10d::AllreduceOptions& opts) {
  Request request(c10d::OpType::ALLREDUCE, "accl:all_reduce", opts.timeout, opts.asyncOp);
  const auto& tensor = only(tensors, request);
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  add_all_reduce(request, tensor, opts.reduceOp);
  request.inputs = request.results = {tensor};
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allreduce_coalesced(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Request request(c10d::OpType::ALLREDUCE_COALESCED, "accl:all_reduce_coalesced", opts.timeout,
                  opts.asyncOp);
  for (const auto& tensor : tensors) add_all_reduce(request, tensor, opts.reduceOp);
  request.inputs = request.results = tensors;
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::reduce(std::vector<at::Tensor>& tensors,
                                                   const c10d::ReduceOptions& opts) {
  Request request(c10d::OpType::REDUCE, "accl:reduce", opts.timeout, opts.asyncOp);
  const auto& tensor = only(tensors, request);
  const auto what = request.tensor_name("tensor");
  check_root(opts.rootRank, request);
  require_dense(tensor, what);
  require_writable(tensor, what);  // on every rank alike, as in broadcast
  Call call;
  call.collective = Collective::kReduce;
  call.root = static_cast<int>(opts.rootRank);
  call.count = elements(tensor);
  set_reduction(call, request, tensor, opts.reduceOp);
  if (rank_ == call.root) {
    call.output.data = request.staging.in_place(tensor, what);
    call.input = call.output;
  } else {
    call.input.data = request.staging.input(tensor, what);  // stays as it is
  }
  request.inputs = request.results = {tensor};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

void BackendACCL::add_all_gather(Request& request, const at::Tensor& output,
                                 const at::Tensor& input) const {
  require_dense(input, request.tensor_name("input"));
  require_same_type(output, input, request.tensor_name("output"));
  require_elements(output, input.numel() * size_, request.tensor_name("output"),
                   "the input's elements times the number of ranks");
  const auto type = moved_type(input.scalar_type());
  Call call;
  call.collective = Collective::kAllGather;
  call.dtype = type.dtype;
  call.count = elements(input) * type.count;
  call.output.data = request.staging.output(output, request.tensor_name("output"));
  call.input.data = request.staging.input(input, request.tensor_name("input"));
  const bool in_place = call.input.data == at_offset(call.output.data, own() * bytes(input));
  if (!in_place && overlaps(call.input.data, bytes(input), call.output.data, bytes(output))) {
    call.input.data = request.staging.private_input(input, request.tensor_name("input"));
  }
  request.calls.push_back(std::move(call));
}

void BackendACCL::add_all_gather_list(Request& request, const std::vector<at::Tensor>& outputs,
                                      const at::Tensor& input) const {
  check_length(outputs.size(), request.tensor_name("the output list"));
  require_dense(input, request.tensor_name("input"));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    require_same_type(outputs[i], input, request.tensor_name(numbered("output", i)));
  }
  require_elements(
      input, outputs[own()].numel(), request.tensor_name("input"),
      "as many as output " + std::to_string(rank_) + " holds, this rank's place in the list");
  const auto type = moved_type(input.scalar_type());
  Call call;
  call.collective = Collective::kAllGather;
  call.dtype = type.dtype;
  call.count = elements(input) * type.count;
  if (!equal_sizes(outputs)) call.counts = counts_of(outputs, type.count);
  call.output = list_buffer(request, outputs, true);
  call.input.data = request.staging.input(input, request.tensor_name("input"));
  if (meets_others(call.input.data, bytes(input), call.output.blocks, own())) {
    call.input.data = request.staging.private_input(input, request.tensor_name("input"));
  }
  request.calls.push_back(std::move(call));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  Request request(c10d::OpType::ALLGATHER, "accl:all_gather", opts.timeout, opts.asyncOp);
  const auto& input = only(inputs, request);
  const auto& list = only(outputs, request);
  add_all_gather_list(request, list, input);
  request.inputs = {input};
  request.results = list;
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& opts) {
  Request request(c10d::OpType::_ALLGATHER_BASE, "accl:_all_gather_base", opts.timeout,
                  opts.asyncOp);
  add_all_gather(request, output, input);
  request.inputs = {input};
  request.results = {output};
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  Request request(c10d::OpType::ALLGATHER_COALESCED, "accl:all_gather_coalesced", opts.timeout,
                  opts.asyncOp);
  check_length(outputs.size(), request.tensor_name("the list of output lists"));
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    TORCH_CHECK(outputs[r].size() == inputs.size(), request.tensor_name(numbered("output list", r)),
                " has ", outputs[r].size(), " tensors, expected ", inputs.size(),
                ", one for each input.");
    request.results.insert(request.results.end(), outputs[r].begin(), outputs[r].end());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> column;
    for (const auto& row : outputs) column.push_back(row[i]);
    add_all_gather_list(request, column, inputs[i]);
  }
  request.inputs = inputs;
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  Request request(c10d::OpType::COALESCED, "accl:all_gather_into_tensor_coalesced", opts.timeout,
                  opts.asyncOp);
  TORCH_CHECK(outputs.size() == inputs.size(), "accl ", request.name(), ": got ", outputs.size(),
              " outputs and ", inputs.size(), " inputs, expected as many of each.");
  for (std::size_t i = 0; i < inputs.size(); ++i) add_all_gather(request, outputs[i], inputs[i]);
  request.inputs = inputs;
  request.results = outputs;
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                   std::vector<at::Tensor>& inputs,
                                                   const c10d::GatherOptions& opts) {
  Request request(c10d::OpType::GATHER, "accl:gather", opts.timeout, opts.asyncOp);
  const auto& input = only(inputs, request);
  check_root(opts.rootRank, request);
  require_dense(input, request.tensor_name("input"));
  const auto type = moved_type(input.scalar_type());
  Call call;
  call.collective = Collective::kGather;
  call.root = static_cast<int>(opts.rootRank);
  call.dtype = type.dtype;
  call.count = elements(input) * type.count;
  call.input.data = request.staging.input(input, request.tensor_name("input"));
  if (rank_ == call.root) {
    const auto& list = only(outputs, request);
    check_length(list.size(), request.tensor_name("the output list"));
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto what = request.tensor_name(numbered("output", i));
      require_same_type(list[i], input, what);
      require_elements(list[i], input.numel(), what, "as many as each rank's input");
    }
    call.output = list_buffer(request, list, true);
    if (meets_others(call.input.data, bytes(input), call.output.blocks, own())) {
      call.input.data = request.staging.private_input(input, request.tensor_name("input"));
    }
    request.results = list;
  } else {
    TORCH_CHECK(outputs.empty() || (outputs.size() == 1 && outputs.front().empty()),
                "accl gather: rank ", rank_,
                " passed an output list, expected none: the root alone (rank ", call.root,
                ") has outputs.");
  }
  request.inputs = {input};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::scatter(std::vector<at::Tensor>& outputs,
                                                    std::vector<std::vector<at::Tensor>>& inputs,
                                                    const c10d::ScatterOptions& opts) {
  Request request(c10d::OpType::SCATTER, "accl:scatter", opts.timeout, opts.asyncOp);
  const auto& output = only(outputs, request);
  check_root(opts.rootRank, request);
  require_dense(output, request.tensor_name("output"));
  const auto type = moved_type(output.scalar_type());
  Call call;
  call.collective = Collective::kScatter;
  call.root = static_cast<int>(opts.rootRank);
  call.dtype = type.dtype;
  call.count = elements(output) * type.count;
  call.output.data = request.staging.output(output, request.tensor_name("output"));
  if (rank_ == call.root) {
    const auto& list = only(inputs, request);
    check_length(list.size(), request.tensor_name("the input list"));
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto what = request.tensor_name(numbered("input", i));
      require_same_type(list[i], output, what);
      require_elements(list[i], output.numel(), what, "as many as each rank's output");
    }
    call.input = list_buffer(request, list, false);
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto& block = call.input.blocks[i];
      const bool in_place = i == own() && block.first == call.output.data;
      if (!in_place && overlaps(block.first, block.second, call.output.data, bytes(output))) {
        block.first =
            request.staging.private_input(list[i], request.tensor_name(numbered("input", i)));
      }
    }
    request.inputs = list;
  } else {
    TORCH_CHECK(inputs.empty() || (inputs.size() == 1 && inputs.front().empty()),
                "accl scatter: rank ", rank_,
                " passed an input list, expected none: the root alone (rank ", call.root,
                ") has inputs.");
  }
  request.results = {output};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::reduce_scatter(
    std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  Request request(c10d::OpType::REDUCE_SCATTER, "accl:reduce_scatter", opts.timeout, opts.asyncOp);
  const auto& output = only(outputs, request);
  const auto& list = only(inputs, request);
  check_length(list.size(), request.tensor_name("the input list"));
  require_dense(output, request.tensor_name("output"));
  for (std::size_t i = 0; i < list.size(); ++i) {
    require_same_type(list[i], output, request.tensor_name(numbered("input", i)));
  }
  require_elements(
      output, list[own()].numel(), request.tensor_name("output"),
      "as many as input " + std::to_string(rank_) + " holds, this rank's place in the list");
  Call call;
  call.collective = Collective::kReduceScatter;
  call.count = elements(output);
  set_reduction(call, request, output, opts.reduceOp);
  if (!equal_sizes(list)) call.counts = counts_of(list, 1);
  call.output.data = request.staging.output(output, request.tensor_name("output"));
  call.input = list_buffer(request, list, false);
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto& block = call.input.blocks[i];
    const bool in_place = i == own() && block.first == call.output.data;
    if (!in_place && overlaps(block.first, block.second, call.output.data, bytes(output))) {
      block.first =
          request.staging.private_input(list[i], request.tensor_name(numbered("input", i)));
    }
  }
  request.inputs = list;
  request.results = {output};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

void BackendACCL::add_reduce_scatter(Request& request, const at::Tensor& output,
                                     const at::Tensor& input, const c10d::ReduceOp& op) const {
  require_dense(output, request.tensor_name("output"));
  require_same_type(input, output, request.tensor_name("input"));
  require_elements(input, output.numel() * size_, request.tensor_name("input"),
                   "the output's elements times the number of ranks");
  Call call;
  call.collective = Collective::kReduceScatter;
  call.count = elements(output);
  set_reduction(call, request, output, op);
  call.output.data = request.staging.output(output, request.tensor_name("output"));
  call.input.data = request.staging.input(input, request.tensor_name("input"));
  const bool in_place = call.output.data == at_offset(call.input.data, own() * bytes(output));
  if (!in_place && overlaps(call.input.data, bytes(input), call.output.data, bytes(output))) {
    call.input.data = request.staging.private_input(input, request.tensor_name("input"));
  }
  request.calls.push_back(std::move(call));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Request request(c10d::OpType::_REDUCE_SCATTER_BASE, "accl:_reduce_scatter_base", opts.timeout,
                  opts.asyncOp);
  add_reduce_scatter(request, output, input, opts.reduceOp);
  request.inputs = {input};
  request.results = {output};
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  Request request(c10d::OpType::COALESCED, "accl:reduce_scatter_tensor_coalesced", opts.timeout,
                  opts.asyncOp);
  TORCH_CHECK(outputs.size() == inputs.size(), "accl ", request.name(), ": got ", outputs.size(),
              " outputs and ", inputs.size(), " inputs, expected as many of each.");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    add_reduce_scatter(request, outputs[i], inputs[i], opts.reduceOp);
  }
  request.inputs = inputs;
  request.results = outputs;
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& opts) {
  Request request(c10d::OpType::ALLTOALL_BASE, "accl:all_to_all", opts.timeout, opts.asyncOp);
  require_dense(input, request.tensor_name("input"));
  require_same_type(output, input, request.tensor_name("output"));
  const auto type = moved_type(input.scalar_type());
  auto sent = split_counts(input_splits, input, size_, request.tensor_name("input"));
  auto received = split_counts(output_splits, output, size_, request.tensor_name("output"));
  for (auto& count : sent) count *= type.count;
  for (auto& count : received) count *= type.count;
  Call call;
  call.collective = Collective::kAllToAll;
  call.dtype = type.dtype;
  if (input_splits.empty() && output_splits.empty()) {
    require_elements(output, input.numel(), request.tensor_name("output"), "as many as the input");
    call.count = sent.front();
  } else {
    call.counts = std::move(sent);
    call.receive_counts = std::move(received);
  }
  call.output.data = request.staging.output(output, request.tensor_name("output"));
  call.input.data = request.staging.input(input, request.tensor_name("input"));
  if (overlaps(call.input.data, bytes(input), call.output.data, bytes(output))) {
    call.input.data = request.staging.private_input(input, request.tensor_name("input"));
  }
  request.inputs = {input};
  request.results = {output};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::alltoall(std::vector<at::Tensor>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllToAllOptions& opts) {
  Request request(c10d::OpType::ALLTOALL, "accl:all_to_all", opts.timeout, opts.asyncOp);
  check_length(inputs.size(), request.tensor_name("the input list"));
  check_length(outputs.size(), request.tensor_name("the output list"));
  require_dense(inputs.front(), request.tensor_name("input 0"));
  for (std::size_t i = 0; i < ranks(); ++i) {
    require_same_type(inputs[i], inputs.front(), request.tensor_name(numbered("input", i)));
    require_same_type(outputs[i], inputs.front(), request.tensor_name(numbered("output", i)));
  }
  const auto type = moved_type(inputs.front().scalar_type());
  Call call;
  call.collective = Collective::kAllToAll;
  call.dtype = type.dtype;
  // Always with counts: a rank whose own sizes are even cannot know whether those of the others
  // are.
  call.counts = counts_of(inputs, type.count);
  call.receive_counts = counts_of(outputs, type.count);
  call.output = list_buffer(request, outputs, true);
  call.input = list_buffer(request, inputs, false);
  for (std::size_t i = 0; i < ranks(); ++i) {
    auto& block = call.input.blocks[i];
    if (meets_others(block.first, block.second, call.output.blocks, kNoOwnBlock)) {
      block.first =
          request.staging.private_input(inputs[i], request.tensor_name(numbered("input", i)));
    }
  }
  request.inputs = inputs;
  request.results = outputs;
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::point_to_point(c10d::OpType type, const char* title,
                                                           const std::vector<at::Tensor>& tensors,
                                                           int peer, int tag) {
  // torch does not say whether the caller waits at once; a send must go on if it does not.
  Request request(type, title, c10d::kUnsetTimeout, true);
  const auto& tensor = only(tensors, request);
  const auto what = request.tensor_name("tensor");
  TORCH_CHECK(peer == kAnySource || (peer >= 0 && peer < size_), "accl ", request.name(),
              ": the peer is rank ", peer, ", expected 0 to ", size_ - 1, ".");
  const auto moved = moved_type(tensor.scalar_type());
  Call call;
  call.peer = peer;
  call.tag = tag;
  call.dtype = moved.dtype;
  call.count = elements(tensor) * moved.count;
  if (type == c10d::OpType::SEND) {
    call.collective = Collective::kSend;
    call.input.data = request.staging.input(tensor, what);
  } else {
    call.collective = Collective::kRecv;
    call.output.data = request.staging.output(tensor, what);
  }
  request.inputs = request.results = {tensor};
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

c10::intrusive_ptr<c10d::Work> BackendACCL::send(std::vector<at::Tensor>& tensors, int peer,
                                                 int tag) {
  TORCH_CHECK(peer >= 0, "accl send: the peer is rank ", peer, ", expected 0 to ", size_ - 1, ".");
  return point_to_point(c10d::OpType::SEND, "accl:send", tensors, peer, tag);
}

c10::intrusive_ptr<c10d::Work> BackendACCL::recv(std::vector<at::Tensor>& tensors, int peer,
                                                 int tag) {
  TORCH_CHECK(peer >= 0, "accl recv: the peer is rank ", peer, ", expected 0 to ", size_ - 1, ".");
  return point_to_point(c10d::OpType::RECV, "accl:recv", tensors, peer, tag);
}

c10::intrusive_ptr<c10d::Work> BackendACCL::recvAnysource(std::vector<at::Tensor>& tensors,
                                                          int tag) {
  return point_to_point(c10d::OpType::RECVANYSOURCE, "accl:recvAnySource", tensors, kAnySource,
                        tag);
}

c10::intrusive_ptr<c10d::Work> BackendACCL::barrier(const c10d::BarrierOptions& opts) {
  if (barrier_device(opts)) return device_barrier(opts);
  Request request(c10d::OpType::BARRIER, "accl:barrier", opts.timeout, opts.asyncOp);
  Call call;
  call.collective = Collective::kBarrier;
  request.calls.push_back(std::move(call));
  return launch(std::move(request));
}

}  // namespace accl::adapter
