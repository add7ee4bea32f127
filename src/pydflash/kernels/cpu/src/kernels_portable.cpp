#define PF_ISA portable
#define PF_SIMD "simd_portable.h"
#include "kernels.inc"

const Kernels* kernels_portable() { return &portable::TABLE; }
