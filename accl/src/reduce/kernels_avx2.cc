#if defined(__x86_64__)
#define ACCL_KERNELS kAvx2Kernels
#include "reduce/kernels.inc"
#endif
