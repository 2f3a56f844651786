// The library under test takes the fakes for CUDA and NCCL. Before main: it reads the environment
// when it is first used.
#include <cstdlib>
#include <string>

#include "device/devices.h"
#include "unit/temporary_directory.h"

namespace {

const accl::test::TemporaryDirectory traces;
const bool set =
    setenv("ACCL_TRACE_DIR", traces.path().c_str(), 1) == 0 &&
    setenv("ACCL_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1) == 0 &&
    setenv("ACCL_NCCL_LIBRARY", FAKE_NCCL_LIBRARY, 1) == 0 &&
    setenv("FAKE_CUDA_DEVICES", std::to_string(accl::test::kMostRanks).c_str(), 1) == 0;

TEST(device_tests_run_on_the_fakes) {
  CHECK(set);
  std::string why;
  CHECK(accl::DeviceCommunicator::available(&why));
  CHECK_EQ(why, "");
}

}  // namespace
