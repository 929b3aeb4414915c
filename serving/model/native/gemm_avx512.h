// Products of a few rows with a panel or two in AVX-512. Every output element is one chain over the steps, in order, in
// one lane of one register, whatever the number of rows and panels.
#pragma once
#include "gemm_parts.h"

namespace cm::CM_ISA_NAMESPACE {

// 24 registers of sums, two or four of weights, one of x.
struct VectorForm {
    static constexpr int kMaxRows = 12;
    static constexpr int kMaxRestoredRows = kMaxRows;
    static constexpr int kMaxPairedRows = 6;  // with two panels at once
    static constexpr bool kUnsignedRows = false;
    static constexpr bool kTiles = false;
};

struct F32 : VectorForm {
    using Number = float;
    using Sum = __m512;
    static CM_INLINE Sum zero() { return _mm512_setzero_ps(); }
    static CM_INLINE __m512 all(const float* x) { return _mm512_set1_ps(*x); }
    static CM_INLINE void add(Sum& sum, __m512 x, const char* w) {
        sum = _mm512_fmadd_ps(x, _mm512_load_ps(reinterpret_cast<const float*>(w)), sum);
    }
    static CM_INLINE void store(char* to, Sum sum) { _mm512_store_ps(reinterpret_cast<float*>(to), sum); }
};

#if !defined(CM_AMX)

static CM_INLINE __m512i all_of_dword(const void* x) {
    int32_t dword;
    __builtin_memcpy(&dword, x, sizeof dword);
    return _mm512_set1_epi32(dword);
}

struct Bf16 : VectorForm {
    using Number = uint16_t;
    using Sum = __m512;
    static CM_INLINE Sum zero() { return _mm512_setzero_ps(); }
    static CM_INLINE __m512i all(const uint16_t* x) { return all_of_dword(x); }
    static CM_INLINE void add(Sum& sum, __m512i x, const char* w) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)_mm512_load_si512(w));
    }
    static CM_INLINE void store(char* to, Sum sum) { _mm512_store_ps(reinterpret_cast<float*>(to), sum); }
};

// The instruction multiplies unsigned by signed: it gets x + 128, and the panel's `sums_at` corrects for that.
struct Int8 : VectorForm {
    static constexpr bool kUnsignedRows = true;
    using Number = int8_t;
    using Sum = __m512i;
    static CM_INLINE Sum zero() { return _mm512_setzero_si512(); }
    static CM_INLINE __m512i all(const int8_t* x) {
        return _mm512_xor_si512(all_of_dword(x), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
    static CM_INLINE void add(Sum& sum, __m512i x, const char* w) {
        sum = _mm512_dpbusd_epi32(sum, x, _mm512_load_si512(w));
    }
    static CM_INLINE void store(char* to, Sum sum) { _mm512_store_si512(to, sum); }
};

#endif

// R rows times P consecutive panels.
template <class Form, int R, int P>
CM_NOINLINE void fixed_block(const Block<Form>& b) {
    constexpr int kSide = 4 / sizeof(typename Form::Number);
    const int64_t panel_bytes = static_cast<int64_t>(b.steps) * kStepBytes;
    const auto* x = b.x;
    Ahead ahead = b.ahead;
    typename Form::Sum sum[R][P][2];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) sum[r][p][0] = sum[r][p][1] = Form::zero();
    Weights<Form, P> weights(b);
    for (int first = 0; first < b.steps; first += weights.steps()) {
        const char* panel[P];
        for (int p = 0; p < P; ++p) panel[p] = weights.next(p);
        for (int step = 0; step < weights.steps(); ++step) {
            const char* from = ahead.pass(1);
            for (int p = 0; p < P; ++p) {
                if (is_short<Form>) continue;  // restoring prefetches instead
                _mm_prefetch(from + p * panel_bytes, _MM_HINT_T0);
                _mm_prefetch(from + p * panel_bytes + 64, _MM_HINT_T0);
            }
            for (int r = 0; r < R; ++r) {
                const auto all = Form::all(x + r * b.stride);
                for (int p = 0; p < P; ++p)
                    for (int half = 0; half < 2; ++half) Form::add(sum[r][p][half], all, panel[p] + step * kStepBytes + half * 64);
            }
            x += kSide;
        }
    }
    char* to = static_cast<char*>(b.sums);
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half) Form::store(to + ((p * R + r) * 2 + half) * 64, sum[r][p][half]);
}

}  // namespace cm::CM_ISA_NAMESPACE
