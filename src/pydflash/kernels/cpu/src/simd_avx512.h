// Sixteen f32 lanes as one AVX-512 register. Included inside the ISA's namespace; see simd_portable.h
// for what each function means.
#pragma once

struct V {
  __m512 v;
};
struct I {
  __m512i v;
};

constexpr int TILE_ROWS = 12;  // enough sums in flight for two FMA units, and room to spare in 32 registers
constexpr int FUSED_PANELS[] = {4, 4, 2, 2, 2, 2, 2, 2};  // by rows of a fused pass: panels it runs through at once
constexpr int FUSED_WHOLE = 8;  // rows whose sums stay in registers while the weights are decoded

INL V vload(const float* p) { return {_mm512_loadu_ps(p)}; }
INL void vstore(float* p, V x) { _mm512_storeu_ps(p, x.v); }
INL V vset(float x) { return {_mm512_set1_ps(x)}; }
INL V fma(V x, V y, V z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
INL V mul(V x, V y) { return {_mm512_mul_ps(x.v, y.v)}; }
INL V add(V x, V y) { return {_mm512_add_ps(x.v, y.v)}; }
INL V sub(V x, V y) { return {_mm512_sub_ps(x.v, y.v)}; }
INL V div(V x, V y) { return {_mm512_div_ps(x.v, y.v)}; }
INL V vmax(V x, V y) { return {_mm512_max_ps(x.v, y.v)}; }
INL V vmin(V x, V y) { return {_mm512_min_ps(x.v, y.v)}; }
INL V zero_below(V x, V key, float bound) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key.v, _mm512_set1_ps(bound), _CMP_GE_OQ), x.v)};
}
INL V keep_range(V x, int lo, int hi, float fill) {
  __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __mmask16 k = _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo)) & _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(hi));
  return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), k, x.v)};
}
INL float hsum(V x) {
  __m256 lo = _mm512_castps512_ps256(x.v);
  __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.v), 1));
  __m256 v = _mm256_add_ps(lo, hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INL float hmax(V x) {
  __m256 lo = _mm512_castps512_ps256(x.v);
  __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.v), 1));
  __m256 v = _mm256_max_ps(lo, hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INL I iload(const void* p) { return {_mm512_loadu_si512(p)}; }
INL I iset(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
INL I iand(I x, I y) { return {_mm512_and_si512(x.v, y.v)}; }
INL I ior(I x, I y) { return {_mm512_or_si512(x.v, y.v)}; }
INL I isub(I x, I y) { return {_mm512_sub_epi32(x.v, y.v)}; }
template <int N>
INL I shl(I x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
INL I shr(I x) {
  return {_mm512_srli_epi32(x.v, N)};
}
INL I shr_by(I x, int n) { return {_mm512_srl_epi32(x.v, _mm_cvtsi32_si128(n))}; }
INL V to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
INL I bits_of(V x) { return {_mm512_castps_si512(x.v)}; }
INL V from_bits(I x) { return {_mm512_castsi512_ps(x.v)}; }
INL V load_f16(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
INL I load_u16(const void* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
INL I load_i8(const void* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
INL I lookup16(I x, const uint8_t* table) {
  __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm512_shuffle_epi8(t, x.v)};
}

// a[r] += w * x[r].
template <int R>
INL void add_rows(V* a, V w, const float* x) {
  for (int r = 0; r < R; r++) a[r] = fma(w, vset(x[r]), a[r]);
}
