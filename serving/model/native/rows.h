// Operations on one row of numbers between the products. The order of every sum depends on its length alone.
#pragma once
#include "pack.h"
#include "simd.h"

namespace cm::CM_ISA_NAMESPACE {

inline float sum_of_squares(const float* x, int n) {
    Vec sums[4] = {zero(), zero(), zero(), zero()};  // four chains hide the latency of an addition
    int first = 0;
    for (; first + 4 * kLanes <= n; first += 4 * kLanes) {
        for (int chain = 0; chain < 4; ++chain) {
            const Vec v = load(x + first + chain * kLanes);
            sums[chain] = fma(v, v, sums[chain]);
        }
    }
    each_vec(n - first, [&](int i, int lanes) {
        const Vec v = load_up_to(x + first + i, lanes);
        sums[0] = fma(v, v, sums[0]);
    });
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// out = x / rms(x) * weight, rounded as RmsNorm does: the quotient to T, then the product to T.
template <class T>
inline void rms_norm(const float* x, const float* weight, int n, float eps, T* out) {
    const Vec scale = splat(1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps));
    each_vec(n, [&](int i, int lanes) {
        const Vec quotient = rounded<T>(mul(load_up_to(x + i, lanes), scale));
        store_up_to(out + i, mul(quotient, load_up_to(weight + i, lanes)), lanes);
    });
}

template <class T>
inline float largest_size(const T* x, int n) {
    Vec most = zero();
    each_vec(n, [&](int i, int lanes) { most = max(most, abs(load_up_to(x + i, lanes))); });
    return reduce_max(most);
}

// x as int8 with one scale: max |x| / 127. Zeros follow up to `padded`. A row of (almost) zeros has no reciprocal.
template <class T>
inline void quantise_row(const T* x, int n, int padded, int8_t* out, float* scale) {
    const float largest = largest_size(x, n);
    *scale = largest / 127.0f;
    const Vec factor = splat(127.0f / (largest < 1e-30f ? 1e-30f : largest));
    each_vec(n, [&](int i, int lanes) { store_up_to(out + i, mul(load_up_to(x + i, lanes), factor), lanes); });
    if (padded > n) __builtin_memset(out + n, 0, static_cast<size_t>(padded - n));
}

// x * scales as two rows of digits, high and low, of `padded` numbers each, with one scale: max |x| / kDigitRange.
template <class T>
inline void quantise_row_16(const T* x, const float* scales, int n, int padded, int8_t* high, float* scale) {
    Vec most = zero();
    each_vec(n, [&](int i, int lanes) {
        most = max(most, abs(mul(load_up_to(x + i, lanes), load_up_to(scales + i, lanes))));
    });
    const float largest = reduce_max(most), range = static_cast<float>(kDigitRange);
    *scale = largest / range;
    const Vec factor = splat(range / (largest < 1e-30f ? 1e-30f : largest));
    int8_t* low = high + padded;
    each_vec(n, [&](int i, int lanes) {
        const Vec whole = round_even(mul(mul(load_up_to(x + i, lanes), load_up_to(scales + i, lanes)), factor));
        // Half a step up first: no number is between two high digits, and the low one is in -128 ... 127.
        const Vec upper = round_even(mul(add(whole, splat(0.5f)), splat(1.0f / 256.0f)));
        store_up_to(high + i, upper, lanes);
        store_up_to(low + i, sub(whole, mul(upper, splat(256.0f))), lanes);
    });
    if (padded == n) return;
    __builtin_memset(high + n, 0, static_cast<size_t>(padded - n));
    __builtin_memset(low + n, 0, static_cast<size_t>(padded - n));
}

// Rotates adjacent pairs in place by the angles with the given (scaled) cosines and sines.
template <class T>
inline void rotate(T* x, const float* cosines, const float* sines, int pairs) {
    for (int i = 0; i < pairs; ++i) {
        const float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
        x[2 * i] = from_float<T>(a * cosines[i] - b * sines[i]);
        x[2 * i + 1] = from_float<T>(a * sines[i] + b * cosines[i]);
    }
}

// out = silu(gate) * up, rounded once.
template <class T>
inline void swiglu(const float* gate, const float* up, int n, T* out) {
    const Vec one = splat(1.0f);
    each_vec(n, [&](int i, int lanes) {
        const Vec g = load_up_to(gate + i, lanes);
        const Vec opened = div(g, add(one, exp(sub(zero(), g))));
        store_up_to(out + i, mul(opened, load_up_to(up + i, lanes)), lanes);
    });
}

// The gates of a network: see cm_model. Limit 0 = as in swiglu().
struct Opening {
    float alpha, limit;
};

// out = (up + 1) * gate * sigmoid(alpha * gate), rounded once; gate at most the limit, up within it on both sides. NaN
// is preserved.
template <class T>
inline void clamped_swiglu(const float* gate, const float* up, int n, Opening as, T* out) {
    const Vec one = splat(1.0f), least = splat(-as.limit);
    const auto at_most = [&](Vec x) { return sub(zero(), max(least, sub(zero(), x))); };
    each_vec(n, [&](int i, int lanes) {
        const Vec g = at_most(load_up_to(gate + i, lanes)), u = max(least, at_most(load_up_to(up + i, lanes)));
        const Vec opened = div(g, add(one, exp(mul(splat(-as.alpha), g))));
        store_up_to(out + i, mul(opened, add(u, one)), lanes);
    });
}

template <class T>
inline void add_into(float* x, const T* y, int n) {
    each_vec(n, [&](int i, int lanes) {
        store_up_to(x + i, add(load_up_to(x + i, lanes), load_up_to(y + i, lanes)), lanes);
    });
}

// x += factor * y
template <class T>
inline void add_scaled_into(float* x, float factor, const T* y, int n) {
    const Vec scale = splat(factor);
    each_vec(n, [&](int i, int lanes) {
        store_up_to(x + i, fma(scale, load_up_to(y + i, lanes), load_up_to(x + i, lanes)), lanes);
    });
}

// Copies between the forms.
template <class From, class To>
inline void convert_row(const From* from, int n, To* to) {
    each_vec(n, [&](int i, int lanes) { store_up_to(to + i, load_up_to(from + i, lanes), lanes); });
}

}  // namespace cm::CM_ISA_NAMESPACE
