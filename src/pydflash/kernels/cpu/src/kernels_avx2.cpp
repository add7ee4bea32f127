#include <immintrin.h>

#define PF_ISA avx2
#define PF_SIMD "simd_avx2.h"
#include "kernels.inc"

const Kernels* kernels_avx2() { return &avx2::TABLE; }
