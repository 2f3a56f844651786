// all_reduce of sparse COO tensors: gather everybody's indices and values, and add them up.
//
// Three collectives, the later ones sized by what the first brings; so it blocks, also where the
// caller asked for an asynchronous call: otherwise calls that the caller makes meanwhile would come
// between them, at different places on different ranks.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

#include "backend.h"

namespace accl::adapter {

std::vector<at::Tensor> BackendACCL::gather_rows(const at::Tensor& own_rows,
                                                 const std::vector<int64_t>& lengths,
                                                 std::chrono::milliseconds timeout) {
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (const int64_t length : lengths) {
    auto sizes = own_rows.sizes().vec();
    sizes[0] = length;
    outputs[0].push_back(at::empty(sizes, own_rows.options()));
  }
  std::vector<at::Tensor> inputs{own_rows};
  c10d::AllgatherOptions opts;
  opts.timeout = timeout;
  opts.asyncOp = false;
  allgather(outputs, inputs, opts)->wait();
  return outputs[0];
}

at::Tensor BackendACCL::sum_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  const auto own_indices = tensor._indices().t().contiguous();  // (entries, sparse dimensions)
  const auto own_values = tensor._values().contiguous();        // (entries, dense dimensions...)

  // Entries first, then what has to be equal on all ranks.
  std::vector<int64_t> shape{own_values.size(0), tensor.sparse_dim()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  const auto own_shape = at::tensor(shape, at::kLong);
  const auto shapes =
      gather_rows(own_shape, std::vector<int64_t>(ranks(), own_shape.size(0)), timeout);
  std::vector<int64_t> entries;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    TORCH_CHECK(at::equal(shapes[r].slice(0, 1), own_shape.slice(0, 1)), "accl all_reduce: rank ",
                r, " has a sparse tensor of other sizes than rank ", rank_, ", whose sizes are ",
                tensor.sizes(), " with ", tensor.sparse_dim(), " sparse dimensions.");
    entries.push_back(shapes[r][0].item<int64_t>());
  }
  const auto indices = at::cat(gather_rows(own_indices, entries, timeout));
  const auto values = at::cat(gather_rows(own_values, entries, timeout));
  return at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), tensor.options()).coalesce();
}

c10::intrusive_ptr<c10d::Work> BackendACCL::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  Request request(c10d::OpType::_ALLREDUCE_SPARSE, "accl:all_reduce", opts.timeout, opts.asyncOp);
  TORCH_CHECK(tensors.size() == 1, "accl all_reduce: got ", tensors.size(),
              " tensors, expected one.");
  const auto& tensor = tensors.front();
  TORCH_CHECK(tensor.layout() == at::kSparse && tensor.device().is_cpu(),
              "accl all_reduce: the tensor has layout ", tensor.layout(), " on ",
              tensor.device().str(), ", expected a sparse COO tensor on the CPU.");
  TORCH_CHECK(opts.reduceOp == c10d::ReduceOp::SUM,
              "accl all_reduce: sparse tensors can be summed only, use ReduceOp.SUM.");
  const at::NoGradGuard no_grad;
  tensor.copy_(sum_sparse(tensor, opts.timeout));
  request.inputs = request.results = {tensor};
  return launch(std::move(request));  // posts nothing: complete at once
}

}  // namespace accl::adapter
