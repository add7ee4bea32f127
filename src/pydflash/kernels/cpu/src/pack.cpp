// GGUF blocks to packed panels: the same numbers in the same number of bits, sixteen rows side by side.
// Sources of the block layouts: ggml-common.h and gguf.quants (facts only).

#include "pack.h"

#include <omp.h>
#include <sys/mman.h>

namespace {

using u8 = uint8_t;
using Codes = u8[256][LANES];  // [k][row]

// Codes of one group into words of 16 lanes; see CodeShape.
template <const CodeShape& C>
void put_codes(const u8 (*codes)[LANES], u8* out) {
  uint32_t words[C.words][LANES] = {};
  constexpr int part = C.group / C.split, places = C.per / C.split, regular = C.words * places;
  constexpr int used = C.bits * C.per, each = 32 - used;
  for (int k = 0; k < C.group; k++) {
    const int n = k % part, half = k / part;
    if (n < regular) {
      const int word = C.row_major ? n / C.per : n % C.words;
      const int shift = (C.row_major ? n % C.per : half * places + n / C.words) * C.bits;
      for (int i = 0; i < LANES; i++) words[word][i] |= static_cast<uint32_t>(codes[k][i]) << shift;
      continue;
    }
    if constexpr (each > 0)
      for (int b = 0; b < C.bits; b++) {
        const int t = (n - regular + half) * C.bits + b, word = t / each, shift = used + t % each;
        for (int i = 0; i < LANES; i++) words[word][i] |= static_cast<uint32_t>(codes[k][i] >> b & 1) << shift;
      }
  }
  memcpy(out, words, sizeof words);
}

void put_f16(u8* out, int lane, const u8* from) { memcpy(out + 2 * lane, from, 2); }

// Nibbles of a 32-block: low ones are k 0..15, high ones 16..31.
void nibbles32(const u8* qs, int lane, Codes& c) {
  for (int i = 0; i < 16; i++) {
    c[i][lane] = qs[i] & 15;
    c[i + 16][lane] = qs[i] >> 4;
  }
}

void fifth_bits(const u8* qh, int lane, Codes& c) {
  uint32_t h;
  memcpy(&h, qh, 4);
  for (int i = 0; i < 32; i++) c[i][lane] |= (h >> i & 1) << 4;
}

// The 12 bytes of Q4_K and Q5_K: number 2g is the scale of group g, 2g + 1 its minimum.
void scale_min(const u8* s, int lane, u8 (*n)[LANES]) {
  for (int g = 0; g < 4; g++) {
    n[2 * g][lane] = s[g] & 63;
    n[2 * g + 1][lane] = s[g + 4] & 63;
    n[2 * g + 8][lane] = (s[g + 8] & 15) | (s[g] >> 6 << 4);
    n[2 * g + 9][lane] = s[g + 8] >> 4 | (s[g + 4] >> 6 << 4);
  }
}

// Nibbles of a 256-block: 32 bytes hold group 2j (low) and 2j + 1 (high).
void nibbles256(const u8* qs, int lane, Codes& c) {
  for (int j = 0; j < 4; j++)
    for (int i = 0; i < 32; i++) {
      c[64 * j + i][lane] = qs[32 * j + i] & 15;
      c[64 * j + 32 + i][lane] = qs[32 * j + i] >> 4;
    }
}

template <Format F>
struct Packer;  // row(): one row's block into codes and heads; finish(): codes into words

template <int SIZE, bool FIFTH>
struct Pack32 {
  static constexpr int HEAD = SIZE % 4 ? 2 : 4;  // d, or d and m
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    put_f16(out, lane, b);
    if (HEAD == 4) put_f16(out + 32, lane, b + 2);
    nibbles32(b + HEAD + (FIFTH ? 4 : 0), lane, c);
    if (FIFTH) fifth_bits(b + HEAD, lane, c);
  }
};
template <>
struct Packer<F_Q4_0> : Pack32<18, false> {
  static void finish(Codes& c, u8* out) { put_codes<CODES4>(c, out + 32); }
};
template <>
struct Packer<F_Q4_1> : Pack32<20, false> {
  static void finish(Codes& c, u8* out) { put_codes<CODES4>(c, out + 64); }
};
template <>
struct Packer<F_IQ4_NL> : Pack32<18, false> {
  static void finish(Codes& c, u8* out) { put_codes<CODES4_LOOKUP>(c, out + 32); }
};
template <>
struct Packer<F_Q5_0> : Pack32<22, true> {
  static void finish(Codes& c, u8* out) { put_codes<CODES5>(c, out + 32); }
};
template <>
struct Packer<F_Q5_1> : Pack32<24, true> {
  static void finish(Codes& c, u8* out) { put_codes<CODES5>(c, out + 64); }
};

template <>
struct Packer<F_Q8_0> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    put_f16(out, lane, b);
    for (int i = 0; i < 32; i++) c[i][lane] = b[2 + i] ^ 128;
  }
  static void finish(Codes& c, u8* out) { put_codes<CODES8>(c, out + 32); }
};

template <>
struct Packer<F_Q4_K> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    put_f16(out, lane, b);
    put_f16(out + 32, lane, b + 2);
    memcpy(out + 64 + 12 * lane, b + 4, 12);  // parked; finish() turns all lanes at once
    nibbles256(b + 16, lane, c);
  }
  static void scales(u8* out) {
    u8 raw[12 * LANES], n[16][LANES];
    memcpy(raw, out + 64, sizeof raw);
    for (int i = 0; i < LANES; i++) scale_min(raw + 12 * i, i, n);
    put_codes<CODES6>(n, out + 64);
  }
  static void finish(Codes& c, u8* out) {
    scales(out);
    for (int g = 0; g < 8; g++) put_codes<CODES4>(c + 32 * g, out + 256 + 256 * g);
  }
};
template <>
struct Packer<F_Q5_K> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    put_f16(out, lane, b);
    put_f16(out + 32, lane, b + 2);
    memcpy(out + 64 + 12 * lane, b + 4, 12);
    nibbles256(b + 48, lane, c);
    for (int g = 0; g < 8; g++)
      for (int i = 0; i < 32; i++) c[32 * g + i][lane] |= (b[16 + i] >> g & 1) << 4;
  }
  static void finish(Codes& c, u8* out) {
    Packer<F_Q4_K>::scales(out);
    for (int g = 0; g < 8; g++) put_codes<CODES5>(c + 32 * g, out + 256 + 320 * g);
  }
};

template <>
struct Packer<F_Q6_K> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    const u8 *ql = b, *qh = b + 128;
    for (int h = 0; h < 2; h++)
      for (int i = 0; i < 64; i++) {
        c[128 * h + i][lane] = ql[64 * h + i] & 15;
        c[128 * h + 64 + i][lane] = ql[64 * h + i] >> 4;
      }
    for (int h = 0; h < 2; h++)
      for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) c[128 * h + 32 * j + i][lane] |= (qh[32 * h + i] >> (2 * j) & 3) << 4;
    put_f16(out, lane, b + 208);
    for (int g = 0; g < 16; g++) out[32 + g / 4 * 64 + lane * 4 + g % 4] = b[192 + g] ^ 128;
  }
  static void finish(Codes& c, u8* out) {
    for (int g = 0; g < 16; g++) put_codes<CODES6>(c + 16 * g, out + 288 + 192 * g);
  }
};

template <>
struct Packer<F_Q3_K> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    const u8 *mask = b, *qs = b + 32;
    for (int k = 0; k < 256; k++) {
      int low = qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
      c[k][lane] = static_cast<u8>(low | (mask[k % 32] >> (k / 32) & 1) << 2);
    }
    put_f16(out, lane, b + 108);
    memcpy(out + 32 + 12 * lane, b + 96, 12);  // parked for finish()
  }
  static void finish(Codes& c, u8* out) {
    u8 raw[12 * LANES], n[16][LANES];
    memcpy(raw, out + 32, sizeof raw);
    for (int lane = 0; lane < LANES; lane++) {
      const u8* s = raw + 12 * lane;
      for (int g = 0; g < 16; g++)
        n[g][lane] = static_cast<u8>((g < 8 ? s[g] & 15 : s[g - 8] >> 4) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4);
    }
    put_codes<CODES6>(n, out + 32);
    for (int g = 0; g < 8; g++) put_codes<CODES3>(c + 32 * g, out + 224 + 192 * g);
  }
};

template <>
struct Packer<F_Q2_K> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    for (int g = 0; g < 16; g++) out[64 + g / 4 * 64 + lane * 4 + g % 4] = b[g];
    for (int k = 0; k < 256; k++) c[k][lane] = b[16 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
    put_f16(out, lane, b + 80);
    put_f16(out + 32, lane, b + 82);
  }
  static void finish(Codes& c, u8* out) {
    for (int g = 0; g < 16; g++) put_codes<CODES2>(c + 16 * g, out + 320 + 64 * g);
  }
};

template <>
struct Packer<F_IQ4_XS> {
  static void row(const u8* b, int lane, Codes& c, u8* out) {
    put_f16(out, lane, b);
    put_f16(out + 32, lane, b + 2);
    memcpy(out + 64 + 4 * lane, b + 4, 4);
    for (int g = 0; g < 8; g++)
      for (int i = 0; i < 16; i++) {
        c[32 * g + i][lane] = b[8 + 16 * g + i] & 15;
        c[32 * g + 16 + i][lane] = b[8 + 16 * g + i] >> 4;
      }
  }
  static void finish(Codes& c, u8* out) {
    for (int g = 0; g < 8; g++) put_codes<CODES4_LOOKUP>(c + 32 * g, out + 128 + 256 * g);
  }
};

using RowPtrs = const u8* [LANES];

template <Format F>
void pack_blocks(const RowPtrs& rows, int lanes, int64_t blocks, u8* out) {
  alignas(64) Codes c;
  memset(c, 0, sizeof c);
  constexpr int size = SHAPES[F].bytes;
  alignas(16) u8 zero[size] = {};
  for (int64_t b = 0; b < blocks; b++, out += size * LANES) {
    for (int i = 0; i < LANES; i++) Packer<F>::row(i < lanes ? rows[i] + b * size : zero, i, c, out);
    Packer<F>::finish(c, out);
  }
}

template <typename T>
void pack_dense(const RowPtrs& rows, int lanes, int64_t cols, u8* out) {
  for (int64_t k = 0; k < cols; k++)
    for (int i = 0; i < LANES; i++) {
      T x = 0;
      if (i < lanes) memcpy(&x, rows[i] + k * sizeof(T), sizeof(T));
      memcpy(out + (k * LANES + i) * sizeof(T), &x, sizeof(T));
    }
}

using PackFn = void (*)(const RowPtrs&, int, int64_t, u8*);
constexpr PackFn PACKERS[F_COUNT] = {
    pack_dense<uint32_t>, pack_dense<uint16_t>, pack_dense<uint16_t>, pack_blocks<F_Q8_0>, pack_blocks<F_Q4_0>,
    pack_blocks<F_Q4_1>,  pack_blocks<F_Q5_0>,  pack_blocks<F_Q5_1>,  pack_blocks<F_Q2_K>, pack_blocks<F_Q3_K>,
    pack_blocks<F_Q4_K>,  pack_blocks<F_Q5_K>,  pack_blocks<F_Q6_K>,  pack_blocks<F_IQ4_NL>, pack_blocks<F_IQ4_XS>};

}  // namespace

void pack_rows(int format, const uint8_t* src, int64_t row_stride, int64_t rows, int64_t blocks, uint8_t* dst,
               int threads) {
  const int64_t panel_bytes = blocks * SHAPES[format].bytes * LANES, panels = (rows + LANES - 1) / LANES;
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t huge = uintptr_t{1} << 21;
  uintptr_t from = (reinterpret_cast<uintptr_t>(dst) + huge - 1) & ~(huge - 1);
  uintptr_t to = (reinterpret_cast<uintptr_t>(dst) + panels * panel_bytes) & ~(huge - 1);
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t p = 0; p < panels; p++) {
    const uint8_t* ptrs[LANES];
    int lanes = static_cast<int>(rows - p * LANES < LANES ? rows - p * LANES : LANES);
    for (int i = 0; i < lanes; i++) ptrs[i] = src + (p * LANES + i) * row_stride;
    PACKERS[format](ptrs, lanes, blocks, dst + p * panel_bytes);
  }
}
