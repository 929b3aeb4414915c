// The vector operations of simd.h on AVX2 with FMA. There are no bf16 products: a pair is held as two floats.
#pragma once
#include "numbers.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kLanes = 8;
constexpr int kRegisters = 16;

struct Vec {
    __m256 v;
};

inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec splat(float value) { return {_mm256_set1_ps(value)}; }

inline Vec widen(__m128i halves) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))}; }

// To nearest, ties to even, in the upper half of each lane; the lower half is undefined. NaN stays NaN.
inline __m256i upper_halves(Vec a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
}
inline __m128i narrow(Vec a) {
    const __m256i words = _mm256_srli_epi32(upper_halves(a), 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08));
}
// Rounded to the nearest, ties to even; too large values saturate. In the lower eight bytes.
inline __m128i narrow_to_int8(Vec a) {
    const __m256i words = _mm256_cvtps_epi32(a.v);
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    return _mm_packs_epi16(shorts, shorts);
}
inline Vec widen_int8(__m128i bytes) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))}; }

inline Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
inline Vec load(const bf16* from) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline Vec load(const int8_t* from) { return widen_int8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))); }
inline Vec load_n(const float* from, int n) { return {_mm256_maskload_ps(from, first_lanes(n))}; }
inline Vec load_n(const bf16* from, int n) {
    bf16 some[kLanes] = {};
    __builtin_memcpy(some, from, static_cast<size_t>(n) * sizeof(bf16));
    return load(some);
}
inline Vec load_n(const int8_t* from, int n) {
    int8_t some[kLanes] = {};
    __builtin_memcpy(some, from, static_cast<size_t>(n));
    return load(some);
}

inline void store(float* to, Vec a) { _mm256_storeu_ps(to, a.v); }
inline void store(bf16* to, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(a)); }
inline void store(int8_t* to, Vec a) { _mm_storel_epi64(reinterpret_cast<__m128i*>(to), narrow_to_int8(a)); }
inline void store_n(float* to, Vec a, int n) { _mm256_maskstore_ps(to, first_lanes(n), a.v); }
inline void store_n(bf16* to, Vec a, int n) {
    bf16 some[kLanes];
    store(some, a);
    __builtin_memcpy(to, some, static_cast<size_t>(n) * sizeof(bf16));
}
inline void store_n(int8_t* to, Vec a, int n) {
    int8_t some[kLanes];
    store(some, a);
    __builtin_memcpy(to, some, static_cast<size_t>(n));
}

inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// If either is NaN: b.
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec round_even(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// n is whole and in -126 ... 127.
inline Vec times_power_of_two(Vec a, Vec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
inline Vec zero_where_less(Vec a, Vec b, Vec otherwise) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ), otherwise.v)};
}
inline Vec rounded_to_bf16(Vec a) {
    return {_mm256_castsi256_ps(_mm256_and_si256(upper_halves(a), _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

inline float reduce_add(Vec a) {
    const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
inline float reduce_max(Vec a) {
    const __m128 halves = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 pairs = _mm_max_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_max_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}

// The four sums, concurrently. A call would pass all of a kernel's sums through memory.
CM_INLINE void reduce_add_4(const Vec a[4], float* to) {
    const __m256 ab = _mm256_hadd_ps(a[0].v, a[1].v), cd = _mm256_hadd_ps(a[2].v, a[3].v);
    const __m256 halves = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

template <>
struct Product<bf16> {
    static constexpr int kDepth = 2;
    static constexpr int kWidth = 2 * kLanes;
    struct Wide {
        Vec even, odd;
    };
    using Weight = float;
    using Query = float;  // of sixteen, the even ones before the odd ones
    static Wide load_query(const float* from) {
        return {CM_ISA_NAMESPACE::load(from), CM_ISA_NAMESPACE::load(from + kLanes)};
    }
    static void store_query(const Wide& query, float* to) { store(to, query.even), store(to + kLanes, query.odd); }
    static Wide load(const bf16* from) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {{_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))},
                {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))}};
    }
    static Vec dot(Vec sum, const Wide& a, const Wide& b) { return fma(a.odd, b.odd, fma(a.even, b.even, sum)); }
    static Wide weights(const float* from) { return {splat(from[0]), splat(from[1])}; }
    // Interleaved columns of two rows: the even columns in the first, the odd ones in the other.
    static void across(const bf16* const* rows, int column, Wide* out) {
        const Wide a = load(rows[0] + column), b = load(rows[1] + column);
        out[0] = {a.even, b.even};
        out[1] = {a.odd, b.odd};
    }
    // Sums of such columns, restored to the order of columns.
    static void unmix(float* to, const Vec* sums) {
        const __m256 low = _mm256_unpacklo_ps(sums[0].v, sums[1].v), high = _mm256_unpackhi_ps(sums[0].v, sums[1].v);
        _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(to + kLanes, _mm256_permute2f128_ps(low, high, 0x31));
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
