// Fakes: a CUDA driver and an NCCL without a GPU, for tests of everything that is ours around them.
//
// libfake_cuda.so has the symbols of accl/src/driver/driver.h: device memory is host memory, a
// stream is a queue with a thread. libfake_nccl.so has those of accl/src/engine/nccl/api.h: ranks
// are threads of one process, and data is really moved and reduced, in stream order.
// ACCL_CUDA_LIBRARY and ACCL_NCCL_LIBRARY make the library load them. Below is what a test says to
// them and asks of them; fakes.py has the same for Python. They are strict: who uses what is
// destroyed ends the process with a sentence.
//
// Environment, read at the first use: FAKE_CUDA_DEVICES (2; 0: no device), FAKE_NCCL_VERSION
// (22809). NCCL's own NCCL_TUNER_PLUGIN and NCCL_MULTI_RANK_GPU_ENABLE work as with NCCL.
//
// What is not as on a GPU: the null stream does not wait for other streams nor they for it, and
// NCCL does not order the streams of one communicator. Code that relies on either is shown as
// wrong.
#pragma once

#include <cstddef>

#include "driver/driver.h"
#include "engine/nccl/api.h"

extern "C" {

// 1: a capture into a graph begins on the stream; what is put there is dropped, other streams join
// by events, and calls that are unsafe then fail with 900 and spoil the capture (status 2) unless
// their thread has the relaxed mode. 0: the capture ends, on all streams that joined.
void fake_cuda_set_capturing(accl::driver::Stream stream, int status);

// Holds the stream where it is now, until it is resumed; null: of the current context.
void fake_cuda_pause(accl::driver::Stream stream);
void fake_cuda_resume(accl::driver::Stream stream);

long fake_cuda_live_events();
long fake_cuda_live_streams();                         // without the null streams
std::size_t fake_cuda_live_bytes();                    // of devices and of pinned host memory
int fake_cuda_device_of(accl::driver::Stream stream);  // ordinal; -1 for an unknown stream

// The next call of the function ("ncclAllReduce"), on any thread or on this one, does nothing and
// returns `result`.
void fake_nccl_fail_next(const char* function, int result);
void fake_nccl_fail_next_here(const char* function, int result);

// How often a function was called in this process.
long fake_nccl_calls(const char* function);

// Communicators are named as in their Config; of several with one name and rank the newest is
// meant. A null name means any; rank -1 in set_async_error means all. 0 where there is none.
int fake_nccl_set_async_error(const char* name, int rank, int result);
int fake_nccl_last_config(const char* name, int rank, accl::nccl::Config* config);

// Ends every init and split that waits for other ranks, with an error: what NCCL's own timeouts do
// in the end.
void fake_nccl_end_waiting_inits();

// What was called, one line a call:
//   ncclAllReduce count=8 type=float32 op=sum captured=0 algorithm=ring protocol=ll channels=0
// `root=` and `peer=` where there is one; the last three only where a tuner plugin was asked, with
// `chunk=` where it has version 6. Returns the length, and writes as much as fits.
std::size_t fake_nccl_log(const char* name, int rank, char* text, std::size_t size);

long fake_nccl_mismatches();          // calls in which ranks did not agree, and which hang for that
long fake_nccl_live_communicators();  // neither destroyed nor aborted

}  // extern "C"
