// Exponentials of scores, in a fixed order, for both forms of attention.
#pragma once
#include "attention_job.h"

namespace cm::CM_ISA_NAMESPACE {

inline float largest_of(const float* x, int n) {
    Vec most = splat(-__builtin_huge_valf());
    each_vec(n, [&](int i, int lanes) {
        if (lanes == kLanes) {
            most = max(most, load(x + i));
        } else {
            for (; lanes > 0; --lanes, ++i) most = max(most, splat(x[i]));
        }
    });
    return reduce_max(most);
}

// weights = e^(scores * scale - most), rounded to T, and their sum; zeros from `seen` to `count`.
template <class T, class Stored>
CM_INLINE float weigh(const float* scores, int seen, int count, float scale, float most, Stored* weights) {
    Vec sum = zero();
    const Vec factor = splat(scale), shift = splat(-most);
    each_vec(seen, [&](int i, int lanes) {
        const Vec weight = rounded<T>(exp(fma(load_up_to(scores + i, lanes), factor, shift)));
        store_up_to(weights + i, weight, lanes);
        if (lanes == kLanes) {
            sum = add(sum, weight);
        } else {
            sum = add(sum, load_n(weights + i, lanes));
        }
    });
    clear_numbers(weights + seen, count - seen);
    return reduce_add(sum);
}

}  // namespace cm::CM_ISA_NAMESPACE
