// What the library's files share: format numbers, the packed layout, and the C records that Python fills.
//
// A weight part [N, K] is stored as panels of 16 rows (N padded with zero rows). A panel is the run of its
// K-blocks; a block of 16 rows takes exactly 16 times the bytes of the GGUF block. Inside it come the scales
// as vectors of 16 f16 (lane = row), then 32-bit words of codes, 16 lanes each.
#pragma once

#include <cstdint>
#include <cstring>

#define INL inline __attribute__((always_inline))

enum Format : int32_t {
  F_F32, F_F16, F_BF16, F_Q8_0, F_Q4_0, F_Q4_1, F_Q5_0, F_Q5_1,
  F_Q2_K, F_Q3_K, F_Q4_K, F_Q5_K, F_Q6_K, F_IQ4_NL, F_IQ4_XS, F_COUNT
};

constexpr int LANES = 16;
constexpr int PAGE = 32;         // positions in a KV page
constexpr int SEGMENT_PAGES = 8; // pages whose online softmax is one partial result

struct BlockShape {
  int32_t k;      // elements of K in a block
  int32_t bytes;  // bytes of a GGUF block: a packed block has 16 times as many
};
constexpr BlockShape SHAPES[F_COUNT] = {
    {1, 4}, {1, 2}, {1, 2}, {32, 34}, {32, 18}, {32, 20}, {32, 22}, {32, 24},
    {256, 84}, {256, 110}, {256, 144}, {256, 176}, {256, 210}, {32, 18}, {256, 136}};

// How `words` 32-bit words hold the codes of one group: `per` codes of `bits` bits in each word. Code k sits in
// word k % words at place k / words, so one mask serves `words` codes running (or, row-major, in word k / per).
// Codes beyond words * per are spread over the bits that are left on top of the words, lowest first. `split` groups
// share the words: each takes per / split places and one spare code.
struct CodeShape {
  int bits, words, per, group;
  bool row_major = false;
  int split = 1;
};
constexpr CodeShape CODES2{2, 1, 16, 16};
constexpr CodeShape CODES3{3, 3, 10, 32, false, 2};
constexpr CodeShape CODES4{4, 4, 8, 32};
constexpr CodeShape CODES4_LOOKUP{4, 4, 8, 32, true};
constexpr CodeShape CODES5{5, 5, 6, 32};
constexpr CodeShape CODES6{6, 3, 5, 16};
constexpr CodeShape CODES8{8, 8, 4, 32};

// Table of IQ4_NL, moved up by 128 to be unsigned.
constexpr uint8_t IQ4_TABLE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

INL float f16_to_f32(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, u;
  float f;
  if (e == 0) {
    f = static_cast<float>(m) * 0x1p-24f;
    memcpy(&u, &f, 4);
    u |= sign;
  } else {
    u = sign | (e == 31 ? 0x7f800000u | (m << 13) : ((e + 112) << 23) | (m << 13));
  }
  memcpy(&f, &u, 4);
  return f;
}

// Round to nearest even, as the hardware does.
INL uint16_t f32_to_f16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  u &= 0x7fffffffu;
  if (u >= 0x7f800000u) return sign | (u > 0x7f800000u ? 0x7e00 : 0x7c00);
  if (u >= 0x477ff000u) return sign | 0x7c00;
  if (u < 0x38800000u) {  // subnormal in f16: let an f32 addition do the rounding
    float a, half = 0.5f;
    memcpy(&a, &u, 4);
    a += half;
    memcpy(&u, &a, 4);
    return sign | static_cast<uint16_t>(u - 0x3f000000u);
  }
  u += 0xfff + ((u >> 13) & 1);
  return sign | static_cast<uint16_t>((u - 0x38000000u) >> 13);
}

INL float bf16_to_f32(uint16_t h) {
  uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

INL uint16_t f32_to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 64);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

INL float max1f(float x, float y) { return x > y ? x : y; }

struct PfSegment {  // rows of one format inside a merged weight
  const uint8_t* data;
  int64_t panel_bytes;
  int32_t format, rows, row0, panels;
};

struct PfWeight {
  const PfSegment* segments;
  const float* bias;  // [rows] or null
  int32_t count, rows, cols, panels;
  const float* scale;  // [rows] or null: multiplies the sums before the bias
};

struct PfProduct {  // y = act((norm? rms_norm(x) * norm : x) W^T * scale + bias) + residual
  const PfWeight* w;
  const float* x;         // [tokens, cols]
  const float* norm;      // [cols] or null
  const float* residual;  // [tokens, rows] or null; may be y itself
  float* y;               // [tokens, rows], or [tokens, rows / 2] when gated
  int64_t tokens;
  float eps;
  int32_t act;  // ACT_NONE, or gate rows then up rows: act(gate) * up
  int32_t threads;
};
enum Act : int32_t { ACT_NONE = -1, ACT_SILU = 0, ACT_GELU = 1 };

enum KvFormat : int32_t { KV_F32, KV_F16, KV_BF16, KV_Q8_0 };

struct PfKV {
  uint8_t *k, *v;
  uint16_t *k_scale, *v_scale;  // f16, q8_0 only
  int32_t k_format, v_format;
};

struct PfAttn {
  const float *q_norm, *k_norm;  // [D] or null
  const float *cos, *sin;        // [positions, dims / 2] or null
  int32_t heads, kv_heads, head_dim, rope_dims, interleaved, window;  // window 0: none
  float scale, eps, softcap;     // softcap 0: none
  int32_t gated;                 // query heads come as [q | gate]
  int32_t causal;                // 0: exact rows are chains that see their later tokens too
};

struct PfBatch {
  const int32_t *positions, *row_of, *base, *page_table, *write_slots, *ancestors;
  const int32_t* cu_q;   // [rows + 1]
  const int32_t* kinds;  // [rows]: 0 prefill, 1 exact
  const int32_t* first;  // [rows] lowest position seen, or null
  int32_t tokens, rows, pages_per_row, ancestor_cols;
};

struct PfAttnLayer {  // x += output(attention(qkv(rms_norm(x) * norm)))
  const PfWeight *qkv, *output;
  const float* norm;  // [qkv->cols]
  const PfAttn* args;
  float eps;
};

struct PfDenseLayer {  // x += down(act(gate) * up), gate and up of rms_norm(x) * norm
  const PfWeight *gate_up, *down;
  const float* norm;  // [gate_up->cols]
  float eps;
  int32_t act;
};

struct PfDelta {
  const float* taps;                // [W, C]: the convolution, the token's own tap last
  const float *a, *dt_bias, *norm;  // [Hv], [Hv], [Dv]
  int32_t k_heads, v_heads, k_dim, v_dim, width;
  float eps;
};

struct PfDeltaBatch {
  const int32_t *row_of, *slots, *parents;  // [T], [rows], [T] or null: chains
  const int32_t *cu_q, *kinds;              // as in PfBatch
  int32_t tokens, rows;
};

struct PfTape {  // operands of the step's first `tokens` tokens
  float *k, *delta, *decay, *rows;  // [T, Hk, Dk], [T, Hv, Dv], [T, Hv], [T, C]
  int32_t tokens;
};

struct PfMoe {
  const PfWeight* const* gate_up;  // [experts]
  const PfWeight* const* down;
  const PfWeight *router, *shared_gate_up, *shared_down;  // no shared expert: null
  const float* shared_gate;                               // [hidden] or null
  int32_t used, sigmoid, normalise, act;
  int32_t apart;  // gate and up halves of every expert start a panel
  float scale;
};

struct Kernels {
  void (*product)(const PfProduct&);
  void (*gate)(const float* x, int64_t tokens, int64_t half, float* y, int act, int threads);
  void (*embed)(const PfWeight&, const int32_t* rows, int64_t count, float* out, int threads);
  void (*attention)(const PfAttn&, const PfKV&, const PfBatch&, const float* qkv, float* out, int threads);
  void (*store_kv)(const PfAttn&, const PfKV&, const PfBatch&, const float* pairs, int64_t stride, int threads);
  void (*top)(const float* x, int64_t rows, int64_t n, int k, float* values, int64_t* ids, float* total, int threads);
  void (*delta)(const PfDelta&, float* conv, float* state, const PfTape&, const PfDeltaBatch&, const float* mixed,
                float* out, int threads);
  void (*delta_commit)(const PfDelta&, float* conv, float* state, const PfTape&, const int32_t* slots,
                       const int32_t* nodes, const int32_t* cu, int count, int threads);
  void (*moe)(const PfMoe&, const float* x, const float* norm, float eps, int64_t tokens, float* out, int threads);
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();

// A buffer of the calling thread that only grows; `which` names its use. 64-byte aligned.
enum ScratchUse {
  S_SHARED_X, S_OWN_X, S_SUMS, S_Q, S_PARTIAL, S_TAIL, S_PAGE, S_ROWS, S_ITEMS, S_LAYER,
  S_DELTA, S_DELTA_TILE, S_MOE, S_MOE_IDS, S_COUNT
};
float* scratch(ScratchUse which, size_t floats);
