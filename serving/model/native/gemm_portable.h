// Products in plain C++, written so that a compiler can vectorise the loop over the 32 columns.
#pragma once
#include "gemm_parts.h"
#include "numbers.h"

namespace cm::CM_ISA_NAMESPACE {

struct PlainForm {
    static constexpr int kMaxRows = 4;
    static constexpr int kMaxRestoredRows = kMaxRows;
    static constexpr int kMaxPairedRows = 0;
    static constexpr bool kUnsignedRows = false;
    static constexpr bool kTiles = false;
};

struct F32 : PlainForm {
    using Number = float;
    using Sum = float;
    static CM_INLINE void add(float& sum, const float* x, const float* w) { sum += *x * *w; }
};

struct Bf16 : PlainForm {
    using Number = bf16;
    using Sum = float;
    static CM_INLINE void add(float& sum, const bf16* x, const bf16* w) {
        sum += to_float(x[0]) * to_float(w[0]);
        sum += to_float(x[1]) * to_float(w[1]);
    }
};

struct Int8 : PlainForm {
    using Number = int8_t;
    using Sum = int32_t;
    static CM_INLINE void add(int32_t& sum, const int8_t* x, const int8_t* w) {
        sum += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
    }
};

template <class Form, int R, int P>
CM_NOINLINE void fixed_block(const Block<Form>& b) {
    constexpr int kSide = 4 / sizeof(typename Form::Number);
    typename Form::Sum sum[R][kPanel] = {};
    const auto* x = b.x;
    Weights<Form, 1> weights(b);
    for (int first = 0; first < b.steps; first += weights.steps()) {
        const auto* w = reinterpret_cast<const typename Form::Number*>(weights.next(0));
        for (int step = 0; step < weights.steps(); ++step, x += kSide, w += kPanel * kSide) {
            for (int r = 0; r < R; ++r)
                for (int n = 0; n < kPanel; ++n) Form::add(sum[r][n], x + r * b.stride, w + n * kSide);
        }
    }
    __builtin_memcpy(b.sums, sum, sizeof sum);
}

}  // namespace cm::CM_ISA_NAMESPACE
