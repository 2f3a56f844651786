// The least time in which two processes can answer each other on one GPU: each spins on a flag in
// device memory that the other writes (CUDA IPC). Prints "flag round trip: X us". Run it under MPS:
// without it the two kernels take turns.
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

constexpr unsigned kTrips = 20000;

__global__ void bounce(unsigned* mine, unsigned* theirs, int first) {
  for (unsigned trip = 1; trip <= kTrips; ++trip) {
    if (first) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(trip) : "memory");
    unsigned seen = 0;
    while (seen != trip)
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
    if (!first) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(trip) : "memory");
  }
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::_Exit(1);
}

struct Shared {
  cudaIpcMemHandle_t handles[2];
  std::atomic<int> arrived[4];
};

void meet(Shared& shared, int place) {
  shared.arrived[place].fetch_add(1);
  while (shared.arrived[place].load() < 2) ::usleep(100);
}

void run(Shared& shared, int rank) {
  unsigned* mine = nullptr;
  unsigned* theirs = nullptr;
  check(cudaMalloc(&mine, 4096), "cudaMalloc");
  check(cudaMemset(mine, 0, 4096), "cudaMemset");
  check(cudaIpcGetMemHandle(&shared.handles[rank], mine), "cudaIpcGetMemHandle");
  meet(shared, 0);
  check(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&theirs), shared.handles[1 - rank],
                             cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
  cudaEvent_t start, end;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  meet(shared, 1);
  cudaEventRecord(start);
  bounce<<<1, 1>>>(mine, theirs, rank == 0);
  cudaEventRecord(end);
  check(cudaDeviceSynchronize(), "the kernel");
  float ms = 0;
  cudaEventElapsedTime(&ms, start, end);
  meet(shared, 2);
  if (rank == 0) std::printf("flag round trip: %.3f us\n", ms * 1e3 / kTrips);
  std::fflush(nullptr);
}

}  // namespace

int main() {
  auto& shared = *new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
  for (int rank = 0; rank < 2; ++rank) {
    if (::fork() != 0) continue;
    run(shared, rank);
    std::_Exit(0);
  }
  int failed = 0;
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    ::wait(&status);
    failed += status != 0;
  }
  return failed;
}
