// The vector operations of simd.h on AVX-512 with bfloat16 products (Zen 4 and 5, Cooper Lake, Sapphire Rapids).
#pragma once
#include "numbers.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kLanes = 16;
constexpr int kRegisters = 32;

struct Vec {
    __m512 v;
};

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec splat(float value) { return {_mm512_set1_ps(value)}; }

inline Vec widen(__m256i halves) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))}; }
inline __m256i narrow(Vec a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }

inline Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Vec load(const bf16* from) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline Vec load(const int8_t* from) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))};
}
inline Vec load_n(const float* from, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), from)}; }
inline Vec load_n(const bf16* from, int n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), from)); }
inline Vec load_n(const int8_t* from, int n) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), from)))};
}

inline void store(float* to, Vec a) { _mm512_storeu_ps(to, a.v); }
inline void store(bf16* to, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(a)); }
inline void store_n(float* to, Vec a, int n) { _mm512_mask_storeu_ps(to, first_lanes(n), a.v); }
inline void store_n(bf16* to, Vec a, int n) { _mm256_mask_storeu_epi16(to, first_lanes(n), narrow(a)); }
// Rounded to the nearest, ties to even; too large values saturate.
inline void store(int8_t* to, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline void store_n(int8_t* to, Vec a, int n) {
    _mm512_mask_cvtsepi32_storeu_epi8(to, first_lanes(n), _mm512_cvtps_epi32(a.v));
}

inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// If either is NaN: b.
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec round_even(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec times_power_of_two(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Vec zero_where_less(Vec a, Vec b, Vec otherwise) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), otherwise.v)};
}
inline Vec rounded_to_bf16(Vec a) { return widen(narrow(a)); }

inline float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }

// The four sums, concurrently. A call would pass all of a kernel's sums through memory.
CM_INLINE void reduce_add_4(const Vec a[4], float* to) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a[0].v, a[1].v), _mm512_unpackhi_ps(a[0].v, a[1].v));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(a[2].v, a[3].v), _mm512_unpackhi_ps(a[2].v, a[3].v));
    const __m512 quarters = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

template <>
struct Product<bf16> {
    static constexpr int kDepth = 2;
    static constexpr int kWidth = 2 * kLanes;
    using Wide = __m512i;  // 32 bf16
    using Weight = bf16;
    using Query = bf16;
    static Wide load(const bf16* from) { return _mm512_loadu_si512(from); }
    static Wide load_query(const bf16* from) { return load(from); }
    static Vec dot(Vec sum, Wide a, Wide b) { return {_mm512_dpbf16_ps(sum.v, (__m512bh)a, (__m512bh)b)}; }
    static Wide weights(const bf16* from) {
        int pair;
        __builtin_memcpy(&pair, from, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    // Interleaved columns of two rows. Within each quarter of the registers: columns 0-3 of 8 in the first, 4-7 in the
    // other.
    static void across(const bf16* const* rows, int column, Wide* out) {
        const __m512i a = _mm512_loadu_si512(rows[0] + column), b = _mm512_loadu_si512(rows[1] + column);
        out[0] = _mm512_unpacklo_epi16(a, b);
        out[1] = _mm512_unpackhi_epi16(a, b);
    }
    // Sums of such columns, restored to the order of columns.
    static void unmix(float* to, const Vec* sums) {
        const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i back = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        _mm512_storeu_ps(to, _mm512_permutex2var_ps(sums[0].v, front, sums[1].v));
        _mm512_storeu_ps(to + kLanes, _mm512_permutex2var_ps(sums[0].v, back, sums[1].v));
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
