// Decoders: packed panel blocks to f32 vectors w[k][16 rows]. Included inside the ISA's namespace.
//
// Every weight is fma(d, q, m) rounded once. A code is masked in place, not shifted down: q * 2^s converts
// exactly, and d * 2^-s takes the power back exactly, so the result is the same number with one instruction less.
#pragma once

template <int N>
struct Num {
  static constexpr int value = N;
};
template <int N, class F>
INL void unroll(F&& f) {
  if constexpr (N > 0) {
    unroll<N - 1>(f);
    f(Num<N - 1>{});
  }
}

struct Scale {
  V d, m;
};

constexpr float pow2(int n) {
  float r = 1;
  for (; n > 0; n--) r *= 2;
  for (; n < 0; n++) r *= 0.5f;
  return r;
}

// Bits on top of the words that spell code number C.words * C.per + N; see CodeShape.
template <const CodeShape& C, int N>
INL I spare_code(const uint8_t* p) {
  constexpr int used = C.bits * C.per, each = 32 - used, first = N * C.bits, last = first + C.bits;
  I sum = iset(0);
  unroll<C.words>([&](auto i) __attribute__((always_inline)) {
    constexpr int w = i.value;
    constexpr int lo = first > w * each ? first : w * each;
    constexpr int hi = last < (w + 1) * each ? last : (w + 1) * each;
    if constexpr (lo < hi) {
      I x = shr<used + lo - w * each>(iload(p + w * 64));
      if constexpr (hi < (w + 1) * each) x = iand(x, iset((1u << (hi - lo)) - 1));
      sum = ior(sum, shl<lo - first>(x));
    }
  });
  return sum;
}

// A format: K elements in a block of BYTES (16 rows), read in groups of GROUP. group<P>(u, stride, g, use) decodes
// group g of P blocks, `stride` bytes apart, and calls use(p, k, w) for k ascending; p is a compile-time number.
template <Format F>
struct Block {
  static constexpr int K = SHAPES[F].k, BYTES = SHAPES[F].bytes * LANES;
};

// Codes by CodeShape behind HEAD bytes; Base::begin(u, g) gives a group's scales.
template <class Base, const CodeShape& C, int HEAD>
struct Coded : Base {
  static constexpr int GROUP = C.group;
  template <int P, class Use>
  static INL void group(const uint8_t* u, int64_t stride, int g, Use&& use) {
    constexpr bool full = C.bits * C.per == 32;  // the top codes need no mask, and must not look negative
    V d[P], m[P];
    for (int p = 0; p < P; p++) {
      Scale s = Base::begin(u + p * stride, g);
      d[p] = s.d;
      m[p] = s.m;
    }
    u += HEAD + g * (C.words * 64);
    I mask = iset((1u << C.bits) - 1);
#pragma GCC unroll 1
    for (int j = 0; j < C.per - full; j++) {
      asm("" : "+r"(u));  // reload the words each time: kept in registers, they would all go to the stack and back
      unroll<C.words>([&](auto w) __attribute__((always_inline)) {
        unroll<P>([&](auto p) __attribute__((always_inline)) {
          I x = iand(iload(u + p.value * stride + w.value * 64), mask);
          use(p, j * C.words + w.value, fma(to_float(x), d[p.value], m[p.value]));
        });
      });
      mask = shl<C.bits>(mask);
      for (int p = 0; p < P; p++) d[p] = mul(d[p], vset(1.0f / (1 << C.bits)));
    }
    asm("" : "+r"(u));
    constexpr int done = (C.per - full) * C.words;
    constexpr float back = pow2(C.bits * (C.per - full));
    for (int p = 0; p < P; p++) d[p] = mul(d[p], vset(back));
    unroll<C.group - done>([&](auto n) __attribute__((always_inline)) {
      unroll<P>([&](auto p) __attribute__((always_inline)) {
        const uint8_t* words = u + p.value * stride;
        I x;
        if constexpr (full)
          x = shr<32 - C.bits>(iload(words + n.value * 64));
        else
          x = spare_code<C, n.value>(words);
        use(p, done + n.value, fma(to_float(x), d[p.value], m[p.value]));
      });
    });
  }
};

// Nibbles that index a table: two byte look-ups serve the eight codes of a word.
template <class Base, int HEAD>
struct Looked : Base {
  static constexpr int GROUP = 32;
  template <int P, class Use>
  static INL void group(const uint8_t* u, int64_t stride, int g, Use&& use) {
    V d[P], m[P];
    for (int p = 0; p < P; p++) {
      Scale s = Base::begin(u + p * stride, g);
      d[p] = s.d;
      m[p] = s.m;
    }
    u += HEAD + g * 256;
#pragma GCC unroll 1
    for (int w = 0; w < 4; w++, u += 64) {
      I half[P][2];
      for (int p = 0; p < P; p++) {
        I x = iload(u + p * stride);
        half[p][0] = lookup16(iand(x, iset(0x0f0f0f0f)), IQ4_TABLE);
        half[p][1] = lookup16(iand(shr<4>(x), iset(0x0f0f0f0f)), IQ4_TABLE);
      }
      unroll<8>([&](auto i) __attribute__((always_inline)) {
        constexpr int shift = i.value / 2 * 8;
        unroll<P>([&](auto p) __attribute__((always_inline)) {
          I x = half[p.value][i.value % 2];
          if constexpr (shift == 24)
            use(p, w * 8 + i.value, fma(to_float(shr<24>(x)), d[p.value], m[p.value]));
          else
            use(p, w * 8 + i.value,
                fma(to_float(iand(x, iset(0xffu << shift))), mul(d[p.value], vset(pow2(-shift))), m[p.value]));
        });
      });
    }
  }
};

template <Format F, int MINUS>
struct Simple : Block<F> {  // one f16 scale, codes moved down by MINUS
  static INL Scale begin(const uint8_t* u, int) {
    V d = load_f16(u);
    return {d, mul(d, vset(-MINUS))};
  }
};
template <Format F>
struct Affine : Block<F> {  // f16 scale and f16 minimum
  static INL Scale begin(const uint8_t* u, int) { return {load_f16(u), load_f16(u + 32)}; }
};

using Q4_0 = Coded<Simple<F_Q4_0, 8>, CODES4, 32>;
using Q4_1 = Coded<Affine<F_Q4_1>, CODES4, 64>;
using Q5_0 = Coded<Simple<F_Q5_0, 16>, CODES5, 32>;
using Q5_1 = Coded<Affine<F_Q5_1>, CODES5, 64>;
using Q8_0 = Coded<Simple<F_Q8_0, 128>, CODES8, 32>;
using IQ4_NL = Looked<Simple<F_IQ4_NL, 128>, 32>;

// Sixteen 6-bit numbers in three words, as CODES6; number i is not known at compile time.
INL I six_bits(const uint8_t* p, int i) {
  if (i < 15) return iand(shr_by(iload(p + i % 3 * 64), i / 3 * 6), iset(63));
  I a = shr<30>(iload(p)), b = shr<30>(iload(p + 64)), c = shr<30>(iload(p + 128));
  return ior(a, ior(shl<2>(b), shl<4>(c)));
}

template <Format F>
struct KScaleMin : Block<F> {  // Q4_K, Q5_K: number 2g is the scale of group g, 2g + 1 its minimum
  static INL Scale begin(const uint8_t* u, int g) {
    V d = mul(load_f16(u), to_float(six_bits(u + 64, 2 * g)));
    V m = mul(load_f16(u + 32), to_float(six_bits(u + 64, 2 * g + 1)));
    return {d, sub(vset(0.0f), m)};
  }
};
using Q4_K = Coded<KScaleMin<F_Q4_K>, CODES4, 256>;
using Q5_K = Coded<KScaleMin<F_Q5_K>, CODES5, 256>;

struct Q6Scale : Block<F_Q6_K> {  // sixteen int8 scales, moved up by 128, four to a word
  static INL Scale begin(const uint8_t* u, int g) {
    I x = iand(shr_by(iload(u + 32 + g / 4 * 64), g % 4 * 8), iset(255));
    V d = mul(load_f16(u), to_float(isub(x, iset(128))));
    return {d, mul(d, vset(-32.0f))};
  }
};
using Q6_K = Coded<Q6Scale, CODES6, 288>;

struct Q2Scale : Block<F_Q2_K> {  // sixteen bytes, low nibble scale, high nibble minimum
  static INL Scale begin(const uint8_t* u, int g) {
    I x = shr_by(iload(u + 64 + g / 4 * 64), g % 4 * 8);
    V d = mul(load_f16(u), to_float(iand(x, iset(15))));
    V m = mul(load_f16(u + 32), to_float(iand(shr<4>(x), iset(15))));
    return {d, sub(vset(0.0f), m)};
  }
};
using Q2_K = Coded<Q2Scale, CODES2, 320>;

struct IQ4XSScale : Block<F_IQ4_XS> {  // eight 6-bit scales: 2 high bits in a u16, nibbles in a word
  static INL Scale begin(const uint8_t* u, int g) {
    I hi = iand(shr_by(load_u16(u + 32), 2 * g), iset(3));
    I lo = iand(shr_by(iload(u + 64), 4 * g), iset(15));
    V d = mul(load_f16(u), to_float(isub(ior(lo, shl<4>(hi)), iset(32))));
    return {d, mul(d, vset(-128.0f))};
  }
};
using IQ4_XS = Looked<IQ4XSScale, 128>;

struct Q3_K : Block<F_Q3_K> {  // two groups share three words: places 0..4 and spare 0, places 5..9 and spare 1
  static constexpr int GROUP = 16;
  template <int P, class Use>
  static INL void group(const uint8_t* u, int64_t stride, int g, Use&& use) {
    V d[P], m[P], whole[P];
    I mask = iset(g % 2 ? 7u << 15 : 7u);
    for (int p = 0; p < P; p++) {
      const uint8_t* b = u + p * stride;
      whole[p] = mul(load_f16(b), to_float(isub(six_bits(b + 32, g), iset(32))));
      m[p] = mul(whole[p], vset(-4.0f));
      d[p] = mul(whole[p], vset(g % 2 ? 0x1p-15f : 1.0f));
    }
    u += 224 + g / 2 * 192;
#pragma GCC unroll 1
    for (int j = 0; j < 5; j++) {
      unroll<3>([&](auto w) __attribute__((always_inline)) {
        unroll<P>([&](auto p) __attribute__((always_inline)) {
          I x = iand(iload(u + p.value * stride + w.value * 64), mask);
          use(p, j * 3 + w.value, fma(to_float(x), d[p.value], m[p.value]));
        });
      });
      mask = shl<3>(mask);
      for (int p = 0; p < P; p++) d[p] = mul(d[p], vset(0.125f));
    }
    unroll<P>([&](auto p) __attribute__((always_inline)) {
      const uint8_t* words = u + p.value * stride;
      I x = g % 2 ? spare_code<CODES3, 1>(words) : spare_code<CODES3, 0>(words);
      use(p, 15, fma(to_float(x), whole[p.value], m[p.value]));
    });
  }
};

// Plain numbers: one element of K to a block.
template <Format F>
struct Dense : Block<F> {
  static constexpr int GROUP = 1;
  template <int P, class Use>
  static INL void group(const uint8_t* u, int64_t stride, int, Use&& use) {
    unroll<P>([&](auto p) __attribute__((always_inline)) {
      const uint8_t* at = u + p.value * stride;
      if constexpr (F == F_F32)
        use(p, 0, vload(reinterpret_cast<const float*>(at)));
      else if constexpr (F == F_F16)
        use(p, 0, load_f16(at));
      else
        use(p, 0, from_bits(shl<16>(load_u16(at))));
    });
  }
};
using F32 = Dense<F_F32>;
using F16 = Dense<F_F16>;
using BF16 = Dense<F_BF16>;
