#define ACCL_KERNELS kBaselineKernels
#include "reduce/kernels.inc"
