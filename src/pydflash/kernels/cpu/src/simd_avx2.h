// Sixteen f32 lanes as two AVX2 registers. Included inside the ISA's namespace; see simd_portable.h
// for what each function means.
#pragma once

struct V {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

constexpr int TILE_ROWS = 6;  // 6 rows x 2 registers of sums, 2 of weights, 1 of activations: 15 of 16
constexpr int FUSED_PANELS[] = {2, 1, 1, 1, 1, 1, 1, 1};  // by rows of a fused pass: panels it runs through at once, so that sums and scales stay in registers
constexpr int FUSED_WHOLE = 5;  // rows whose sums stay in registers while the weights are decoded

INL V vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INL void vstore(float* p, V x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
INL V vset(float x) {
  __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
INL V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INL V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INL V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INL V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INL V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INL V vmax(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INL V vmin(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INL V zero_below(V x, V key, float bound) {
  __m256 c = _mm256_set1_ps(bound);
  return {_mm256_and_ps(x.a, _mm256_cmp_ps(key.a, c, _CMP_GE_OQ)),
          _mm256_and_ps(x.b, _mm256_cmp_ps(key.b, c, _CMP_GE_OQ))};
}
INL V keep_range(V x, int lo, int hi, float fill) {
  __m256i ia = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), ib = _mm256_add_epi32(ia, _mm256_set1_epi32(8));
  __m256i l = _mm256_set1_epi32(lo - 1), h = _mm256_set1_epi32(hi);
  __m256 f = _mm256_set1_ps(fill);
  __m256i ka = _mm256_and_si256(_mm256_cmpgt_epi32(ia, l), _mm256_cmpgt_epi32(h, ia));
  __m256i kb = _mm256_and_si256(_mm256_cmpgt_epi32(ib, l), _mm256_cmpgt_epi32(h, ib));
  return {_mm256_blendv_ps(f, x.a, _mm256_castsi256_ps(ka)), _mm256_blendv_ps(f, x.b, _mm256_castsi256_ps(kb))};
}
INL float hsum(V x) {
  __m256 v = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INL float hmax(V x) {
  __m256 v = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INL I iload(const void* p) {
  auto q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
INL I iset(uint32_t x) {
  __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
INL I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
INL I ior(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
INL I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
template <int N>
INL I shl(I x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
INL I shr(I x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
INL I shr_by(I x, int n) {
  __m128i c = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(x.a, c), _mm256_srl_epi32(x.b, c)};
}
INL V to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INL I bits_of(V x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
INL V from_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INL V load_f16(const void* p) {
  auto q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
INL I load_u16(const void* p) {
  auto q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
INL I load_i8(const void* p) {
  __m128i q = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(q), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q))};
}
INL I lookup16(I x, const uint8_t* table) {
  __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}

// a[r] += w * x[r]. Tied to registers: what gives way to sums is a scale or a minimum, which is only read, and not
// another sum, whose next fma would wait for the store and the load.
template <int R>
INL void add_rows(V* a, V w, const float* x) {
  for (int r = 0; r < R; r++) {
    __m256 t;
    asm("vbroadcastss %3, %2\n\tvfmadd231ps %2, %4, %0\n\tvfmadd231ps %2, %5, %1"
        : "+x"(a[r].a), "+x"(a[r].b), "=&x"(t)
        : "m"(x[r]), "x"(w.a), "x"(w.b));
  }
}
