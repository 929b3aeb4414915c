// The vector operations of simd.h in plain C++ (with the vector types that GCC and Clang share), for any machine.
#pragma once
#include "numbers.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kLanes = 4;
constexpr int kRegisters = 16;

using Floats = float __attribute__((vector_size(16)));
using Words = int32_t __attribute__((vector_size(16)));

struct Vec {
    Floats v;
};

inline Vec zero() { return {Floats{}}; }
inline Vec splat(float value) { return {Floats{} + value}; }

template <class T>
inline Vec load_n(const T* from, int n) {
    Vec a = zero();
    for (int i = 0; i < n; ++i) a.v[i] = to_float(from[i]);
    return a;
}
template <>
inline Vec load_n(const int8_t* from, int n) {
    Vec a = zero();
    for (int i = 0; i < n; ++i) a.v[i] = static_cast<float>(from[i]);
    return a;
}
template <class T>
inline Vec load(const T* from) {
    return load_n(from, kLanes);
}
template <>
inline Vec load(const float* from) {
    Vec a;
    __builtin_memcpy(&a, from, sizeof a);
    return a;
}

template <class T>
inline void store_n(T* to, Vec a, int n) {
    for (int i = 0; i < n; ++i) to[i] = from_float<T>(a.v[i]);
}
// Rounded to the nearest, ties to even; too large values saturate.
template <>
inline void store_n(int8_t* to, Vec a, int n) {
    for (int i = 0; i < n; ++i) {
        const float whole = __builtin_nearbyintf(a.v[i]);
        to[i] = static_cast<int8_t>(whole > 127.0f ? 127.0f : whole > -128.0f ? whole : -128.0f);  // a NaN becomes -128
    }
}
template <class T>
inline void store(T* to, Vec a) {
    store_n(to, a, kLanes);
}
template <>
inline void store(float* to, Vec a) {
    __builtin_memcpy(to, &a, sizeof a);
}

inline Vec add(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec sub(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec mul(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec div(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }  // rounded twice: a fused one is a call here
// If either is NaN: b.
inline Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec abs(Vec a) { return {(Floats)((Words)a.v & 0x7fffffff)}; }
// For numbers below 2^22: the sum has no bits for a fraction.
inline Vec round_even(Vec a) {
    const Floats big = Floats{} + 12582912.0f;
    return {(a.v + big) - big};
}
// n is whole and in -126 ... 127.
inline Vec times_power_of_two(Vec a, Vec n) {
    const Words whole = (Words)(n.v + 12583039.0f);  // 127 + n in the lowest bits
    return {a.v * (Floats)(whole << 23)};
}
inline Vec zero_where_less(Vec a, Vec b, Vec otherwise) { return {(Floats)(~(a.v < b.v) & (Words)otherwise.v)}; }
inline Vec rounded_to_bf16(Vec a) {
    for (int i = 0; i < kLanes; ++i) a.v[i] = to_float(from_float<bf16>(a.v[i]));
    return a;
}

inline float reduce_add(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float reduce_max(Vec a) {
    const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2], y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
    return x > y ? x : y;
}

// The four sums, concurrently. A call would pass all of a kernel's sums through memory.
CM_INLINE void reduce_add_4(const Vec a[4], float* to) {
    for (int i = 0; i < 4; ++i) to[i] = reduce_add(a[i]);
}

template <>
struct Product<bf16> {
    static constexpr int kDepth = 2;
    static constexpr int kWidth = 2 * kLanes;
    struct Wide {
        Vec first, second;  // of each pair
    };
    using Weight = float;
    using Query = bf16;
    static Wide load_query(const bf16* from) { return load(from); }
    static Wide load(const bf16* from) {
        Wide wide;
        for (int i = 0; i < kLanes; ++i) {
            wide.first.v[i] = to_float(from[2 * i]);
            wide.second.v[i] = to_float(from[2 * i + 1]);
        }
        return wide;
    }
    static Vec dot(Vec sum, const Wide& a, const Wide& b) {
        return fma(a.second, b.second, fma(a.first, b.first, sum));
    }
    static Wide weights(const float* from) { return {splat(from[0]), splat(from[1])}; }
    // Interleaved columns of two rows, in the order of the columns.
    static void across(const bf16* const* rows, int column, Wide* out) {
        out[0] = {CM_ISA_NAMESPACE::load(rows[0] + column), CM_ISA_NAMESPACE::load(rows[1] + column)};
        out[1] = {CM_ISA_NAMESPACE::load(rows[0] + column + kLanes), CM_ISA_NAMESPACE::load(rows[1] + column + kLanes)};
    }
    static void unmix(float* to, const Vec* sums) {
        store(to, sums[0]);
        store(to + kLanes, sums[1]);
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
