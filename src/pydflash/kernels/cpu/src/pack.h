// Repacking of GGUF rows at load.
#pragma once

#include "layout.h"

// rows of `blocks` blocks each, `row_stride` bytes apart, into panels at dst
// (ceil(rows / 16) * blocks * 16 * block bytes).
void pack_rows(int format, const uint8_t* src, int64_t row_stride, int64_t rows, int64_t blocks, uint8_t* dst,
               int threads);

// See copy.cpp.
void copy_positions(uint8_t* data, int64_t outer, int64_t inner, const int32_t* src, const int32_t* dst,
                    int64_t count);
