#include <immintrin.h>

#define PF_ISA avx512
#define PF_SIMD "simd_avx512.h"
#include "kernels.inc"

const Kernels* kernels_avx512() { return &avx512::TABLE; }
