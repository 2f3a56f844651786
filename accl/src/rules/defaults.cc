// The rules that hold where the user gives none: the CPU engine's, and the sizes at which our CUDA
// kernels take over from NCCL. NCCL's own model needs none of ours.
#include "accl/rules.h"

namespace accl {

namespace {

constexpr std::string_view kText = R"(# written_by: hand
# why: small messages ride beside their flag; mid sizes save a round; large ones move each byte twice at most
# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff,engine,chunk_bytes
allreduce,0,32768,direct,inline,-1,-1,-1,-1,-1,cpu
allreduce,32769,-1,two_shot,bulk,-1,-1,-1,-1,-1,cpu
allgather,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
reducescatter,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
broadcast,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
reduce,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
alltoall,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
gather,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
scatter,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu
barrier,0,-1,dissemination,inline,-1,-1,-1,-1,-1,cpu
allreduce,0,65536,direct,-1,-1,-1,-1,-1,-1,cuda
allreduce,65537,262144,two_shot,-1,-1,-1,-1,-1,-1,cuda
allgather,0,262144,direct,-1,-1,-1,-1,-1,-1,cuda
reducescatter,0,262144,direct,-1,-1,-1,-1,-1,-1,cuda
broadcast,0,65536,direct,-1,-1,-1,-1,-1,-1,cuda
reduce,0,65536,direct,-1,-1,-1,-1,-1,-1,cuda
alltoall,0,262144,direct,-1,-1,-1,-1,-1,-1,cuda
gather,0,262144,direct,-1,-1,-1,-1,-1,-1,cuda
scatter,0,262144,direct,-1,-1,-1,-1,-1,-1,cuda
)";

}  // namespace

std::string_view Rules::defaults_text() noexcept { return kText; }

const Rules& Rules::defaults() {
  static const Rules rules = parse(kText, "built-in defaults");
  return rules;
}

}  // namespace accl
