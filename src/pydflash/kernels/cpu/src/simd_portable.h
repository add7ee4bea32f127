// Sixteen f32 lanes as compiler vectors: the meaning of every vector function, and the path of a machine
// without AVX2 (NEON on ARM, SSE2 on x86). Included inside the ISA's namespace. Every function rounds exactly
// like the x86 vector forms, so results are the same bits on every ISA.
#pragma once

constexpr int TILE_ROWS = 4;
constexpr int FUSED_PANELS[] = {1, 1, 1, 1, 1, 1, 1, 1};  // by rows of a fused pass: panels it runs through at once
constexpr int FUSED_WHOLE = 8;  // rows whose sums stay in registers while the weights are decoded

typedef float V __attribute__((vector_size(64)));
typedef uint32_t I __attribute__((vector_size(64)));
typedef int32_t Signed __attribute__((vector_size(64)));

// Where fma is a library call, inlining sixteen of them at every use takes the compiler minutes.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define PF_CALL INL
#else
#define PF_CALL static __attribute__((noinline))
#endif

INL V vload(const float* p) {
  V r;
  memcpy(&r, p, 64);
  return r;
}
INL void vstore(float* p, V x) { memcpy(p, &x, 64); }
INL V vset(float x) { return V{} + x; }
// x * y + z, rounded once.
PF_CALL V fma(V x, V y, V z) {
  for (int i = 0; i < 16; i++) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return z;
}
INL V mul(V x, V y) { return x * y; }
INL V add(V x, V y) { return x + y; }
INL V sub(V x, V y) { return x - y; }
INL V div(V x, V y) { return x / y; }
// The x86 rule: the second operand when either is NaN.
INL V vmax(V x, V y) { return x > y ? x : y; }
INL V vmin(V x, V y) { return x < y ? x : y; }
// x where key >= bound, else 0.
INL V zero_below(V x, V key, float bound) { return key >= vset(bound) ? x : V{}; }
// x in lanes lo <= i < hi, fill elsewhere.
INL V keep_range(V x, int lo, int hi, float fill) {
  for (int i = 0; i < 16; i++)
    if (i < lo || i >= hi) x[i] = fill;
  return x;
}
// Sum by halves: lane i with i + 8, then i + 4, i + 2, i + 1.
INL float hsum(V x) {
  for (int h = 8; h; h /= 2)
    for (int i = 0; i < h; i++) x[i] = x[i] + x[i + h];
  return x[0];
}
INL float hmax(V x) {
  for (int h = 8; h; h /= 2)
    for (int i = 0; i < h; i++) x[i] = x[i] > x[i + h] ? x[i] : x[i + h];
  return x[0];
}

INL I iload(const void* p) {
  I r;
  memcpy(&r, p, 64);
  return r;
}
INL I iset(uint32_t x) { return I{} + x; }
INL I iand(I x, I y) { return x & y; }
INL I ior(I x, I y) { return x | y; }
INL I isub(I x, I y) { return x - y; }
template <int N>
INL I shl(I x) {
  return x << N;
}
template <int N>
INL I shr(I x) {
  return x >> N;
}
INL I shr_by(I x, int n) { return x >> static_cast<uint32_t>(n); }
// Signed 32-bit to f32.
INL V to_float(I x) { return __builtin_convertvector(reinterpret_cast<Signed>(x), V); }
INL I bits_of(V x) { return reinterpret_cast<I>(x); }
INL V from_bits(I x) { return reinterpret_cast<V>(x); }
PF_CALL V load_f16(const void* p) {
  uint16_t h[16];
  memcpy(h, p, 32);
  V r;
  for (int i = 0; i < 16; i++) r[i] = f16_to_f32(h[i]);
  return r;
}
INL I load_u16(const void* p) {
  typedef uint16_t H __attribute__((vector_size(32)));
  H h;
  memcpy(&h, p, 32);
  return __builtin_convertvector(h, I);
}
INL I load_i8(const void* p) {
  typedef int8_t B __attribute__((vector_size(16)));
  B b;
  memcpy(&b, p, 16);
  return reinterpret_cast<I>(__builtin_convertvector(b, Signed));
}
// Each byte of x (0..15) replaced by table[byte].
PF_CALL I lookup16(I x, const uint8_t* table) {
  uint8_t b[64];
  memcpy(b, &x, 64);
  for (int i = 0; i < 64; i++) b[i] = table[b[i] & 15];
  memcpy(&x, b, 64);
  return x;
}

// a[r] += w * x[r].
template <int R>
INL void add_rows(V* a, V w, const float* x) {
  for (int r = 0; r < R; r++) a[r] = fma(w, vset(x[r]), a[r]);
}

#undef PF_CALL
