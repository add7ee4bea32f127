// The C interface, the choice of ISA, and each thread's scratch memory.

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <cstdlib>

#include "pack.h"

namespace {

struct Scratch {
  float* data[S_COUNT] = {};
  size_t size[S_COUNT] = {};
  ~Scratch() {
    for (float* p : data) free(p);
  }
};
thread_local Scratch mine;

const Kernels* active = nullptr;

}  // namespace

struct PfDeltaLayer {  // x += output(delta(mixed(rms_norm(x) * norm)))
  const PfWeight *mixed, *output;
  const float* norm;  // [mixed->cols]
  const PfDelta* args;
  float eps;
};

float* scratch(ScratchUse which, size_t floats) {
  if (mine.size[which] < floats) {
    free(mine.data[which]);
    size_t bytes = (floats * sizeof(float) + 4095) & ~size_t{4095};
    void* p = nullptr;
    if (posix_memalign(&p, 64, bytes)) abort();
    mine.data[which] = static_cast<float*>(p);
    mine.size[which] = bytes / sizeof(float);
  }
  return mine.data[which];
}

#pragma GCC visibility push(default)
extern "C" {

// Size of the records, so that a caller built against another layout is noticed at load.
int32_t pf_layout() {
  return static_cast<int32_t>(sizeof(PfSegment) + sizeof(PfWeight) * 3 + sizeof(PfKV) * 5 + sizeof(PfAttn) * 7 +
                              sizeof(PfBatch) * 11 + sizeof(PfDelta) * 13 + sizeof(PfDeltaBatch) * 17 +
                              sizeof(PfTape) * 19 + sizeof(PfMoe) * 23 + sizeof(PfAttnLayer) * 29 +
                              sizeof(PfDenseLayer) * 31 + sizeof(PfDeltaLayer) * 37);
}

#if defined(__x86_64__)
// Half floats in hardware; older compilers do not know the name for __builtin_cpu_supports.
static bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
}
#endif

// Pick an ISA by name, or the best one for null. Returns its name, or null when this machine or build lacks it.
const char* pf_select(const char* name) {
  struct Choice {
    const char* name;
    const Kernels* (*table)();
    bool usable;
  };
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#if defined(PF_AVX512)
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
#endif
  const Choice choices[] = {
#if defined(PF_AVX512)
      {"avx512", kernels_avx512, avx512},
#endif
#if defined(__x86_64__)
      {"avx2", kernels_avx2, avx2},
#endif
      {"portable", kernels_portable, true}};
  for (const Choice& c : choices)
    if (c.usable && (!name || !strcmp(name, c.name))) {
      active = c.table();
      return c.name;
    }
  return nullptr;
}

void pf_pack(int32_t format, const uint8_t* src, int64_t row_stride, int64_t rows, int64_t blocks, uint8_t* dst,
             int32_t threads) {
  pack_rows(format, src, row_stride, rows, blocks, dst, threads);
}

void pf_product(const PfWeight* w, const float* x, int64_t tokens, float* y, const float* residual, const float* norm,
                float eps, int32_t act, int32_t threads) {
  if (tokens <= 0) return;
  active->product({w, x, norm, residual, y, tokens, eps, act, threads});
}

void pf_gate(const float* x, int64_t tokens, int64_t half, float* y, int32_t act, int32_t threads) {
  active->gate(x, tokens, half, y, act, threads);
}

void pf_embed(const PfWeight* w, const int32_t* rows, int64_t count, float* out, int32_t threads) {
  active->embed(*w, rows, count, out, threads);
}

void pf_attention(const PfAttn* args, const PfKV* kv, const PfBatch* batch, const float* qkv, float* out,
                  int32_t threads) {
  if (batch->tokens <= 0) return;
  active->attention(*args, *kv, *batch, qkv, out, threads);
}

void pf_store_kv(const PfAttn* args, const PfKV* kv, const PfBatch* batch, const float* pairs, int64_t stride,
                 int32_t threads) {
  active->store_kv(*args, *kv, *batch, pairs, stride, threads);
}

void pf_top(const float* x, int64_t rows, int64_t n, int32_t k, float* values, int64_t* ids, float* total,
            int32_t threads) {
  if (n > 0 && k > 0) active->top(x, rows, n, k, values, ids, total, threads);
}

void pf_delta(const PfDelta* args, float* conv, float* state, const PfTape* tape, const PfDeltaBatch* batch,
              const float* mixed, float* out, int32_t threads) {
  if (batch->tokens <= 0) return;
  active->delta(*args, conv, state, tape ? *tape : PfTape{}, *batch, mixed, out, threads);
}

void pf_delta_commit(const PfDelta* args, float* conv, float* state, const PfTape* tape, const int32_t* slots,
                     const int32_t* nodes, const int32_t* cu, int32_t count, int32_t threads) {
  active->delta_commit(*args, conv, state, *tape, slots, nodes, cu, count, threads);
}

void pf_moe(const PfMoe* args, const float* x, const float* norm, float eps, int64_t tokens, float* out,
            int32_t threads) {
  if (tokens <= 0) return;
  active->moe(*args, x, norm, eps, tokens, out, threads);
}

// Whole halves of a layer in one call each: x [tokens, E] is read, and the result added to it.
void pf_attention_layer(const PfAttnLayer* layer, const PfKV* kv, const PfBatch* batch, float* x, int32_t threads) {
  const int64_t tokens = batch->tokens, wide = layer->qkv->rows, out = layer->output->cols;
  if (tokens <= 0) return;
  float* qkv = scratch(S_LAYER, static_cast<size_t>(tokens * (wide + out)));
  float* attended = qkv + tokens * wide;
  active->product({layer->qkv, x, layer->norm, nullptr, qkv, tokens, layer->eps, ACT_NONE, threads});
  active->attention(*layer->args, *kv, *batch, qkv, attended, threads);
  active->product({layer->output, attended, nullptr, x, x, tokens, 0.0f, ACT_NONE, threads});
}

void pf_dense_layer(const PfDenseLayer* layer, float* x, int64_t tokens, int32_t threads) {
  if (tokens <= 0) return;
  float* gated = scratch(S_LAYER, static_cast<size_t>(tokens * layer->down->cols));
  active->product({layer->gate_up, x, layer->norm, nullptr, gated, tokens, layer->eps, layer->act, threads});
  active->product({layer->down, gated, nullptr, x, x, tokens, 0.0f, ACT_NONE, threads});
}

void pf_delta_layer(const PfDeltaLayer* layer, float* conv, float* state, const PfTape* tape,
                    const PfDeltaBatch* batch, float* x, int32_t threads) {
  const int64_t tokens = batch->tokens, wide = layer->mixed->rows, out = layer->output->cols;
  if (tokens <= 0) return;
  float* mixed = scratch(S_LAYER, static_cast<size_t>(tokens * (wide + out)));
  float* remembered = mixed + tokens * wide;
  active->product({layer->mixed, x, layer->norm, nullptr, mixed, tokens, layer->eps, ACT_NONE, threads});
  active->delta(*layer->args, conv, state, tape ? *tape : PfTape{}, *batch, mixed, remembered, threads);
  active->product({layer->output, remembered, nullptr, x, x, tokens, 0.0f, ACT_NONE, threads});
}

void pf_copy(uint8_t* data, int64_t outer, int64_t inner, const int32_t* src, const int32_t* dst, int64_t count) {
  copy_positions(data, outer, inner, src, dst, count);
}

}  // extern "C"
#pragma GCC visibility pop
