#if defined(__x86_64__)
#define ACCL_KERNELS kAvx512Kernels
#include "reduce/kernels.inc"
#endif
