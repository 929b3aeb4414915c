// A few vector operations with the same names on every instruction set, so that code using them is written once.
//
//     Vec            kLanes float32; load, store (of float, bf16, int8), arithmetic, reductions in a fixed order
//     Product<T>     how rows of T are multiplied and summed up: kDepth numbers of each row at once in a lane
//
// The selected file provides the primitives (each also for a tail of n < kLanes numbers: the remaining lanes are zero
// when read and unchanged when written); this one adds operations based on them.
#pragma once
#include "numbers.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
struct Product;

}  // namespace cm::CM_ISA_NAMESPACE

#if defined(CM_AVX512) || defined(CM_AMX)
#include "simd_avx512.h"
#elif defined(CM_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace cm::CM_ISA_NAMESPACE {

template <>
struct Product<float> {
    static constexpr int kDepth = 1;
    static constexpr int kWidth = kLanes;
    using Wide = Vec;
    using Weight = float;
    using Query = float;
    static Wide load(const float* from) { return CM_ISA_NAMESPACE::load(from); }
    static Wide load_query(const float* from) { return load(from); }
    static Vec dot(Vec sum, Wide a, Wide b) { return fma(a, b, sum); }
    static Wide weights(const float* from) { return splat(*from); }
    static void across(const float* const* rows, int column, Wide* out) { out[0] = load(rows[0] + column); }
    static void unmix(float* to, const Vec* sums) { store(to, sums[0]); }
};

// Calls body(first, n) for runs of kLanes numbers out of `size`; the last one may be shorter.
template <class Body>
inline void each_vec(int size, Body&& body) {
    int first = 0;
    for (; first + kLanes <= size; first += kLanes) body(first, kLanes);
    if (first < size) body(first, size - first);
}

template <class T>
inline Vec load_up_to(const T* from, int n) {
    return n == kLanes ? load(from) : load_n(from, n);
}
template <class T>
inline void store_up_to(T* to, Vec value, int n) {
    if (n == kLanes) {
        store(to, value);
    } else {
        store_n(to, value, n);
    }
}

// The value of a number after storing it as a T.
template <class T>
inline Vec rounded(Vec value);
template <>
inline Vec rounded<float>(Vec value) {
    return value;
}
template <>
inline Vec rounded<bf16>(Vec value) {
    return rounded_to_bf16(value);
}

// e^x within 2 units in the last place. Below -87.33 it is 0 (also for -infinity); above 88 it counts as e^88, which
// keeps powers of two in range and is effectively infinite wherever the step uses it. NaN stays NaN.
CM_INLINE Vec exp(Vec x) {
    const Vec lowest = splat(-87.33654f);
    const Vec y = min(splat(88.0f), max(lowest, x));  // this order of arguments propagates a NaN
    const Vec n = round_even(mul(y, splat(1.44269504f)));
    const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), y));
    Vec p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = add(fma(p, mul(r, r), r), splat(1.0f));
    return zero_where_less(x, lowest, times_power_of_two(p, n));
}

}  // namespace cm::CM_ISA_NAMESPACE
