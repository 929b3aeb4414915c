// Products of a few rows with a panel in AVX2, part by part, since there are only sixteen registers.
#pragma once
#include "gemm_parts.h"

namespace cm::CM_ISA_NAMESPACE {

struct VectorForm {
    static constexpr int kMaxRows = 6;
    static constexpr int kMaxRestoredRows = 2;  // for more rows several passes over a panel
    static constexpr int kMaxPairedRows = 0;
    static constexpr bool kUnsignedRows = false;
    static constexpr bool kTiles = false;
};

struct F32 : VectorForm {
    using Number = float;
    using Sum = __m256;
    static constexpr int kSumsPerVector = 1;
    static CM_INLINE Sum zero() { return _mm256_setzero_ps(); }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const float* x, int64_t stride, const char* w) {
        for (int r = 0; r < R; ++r) {
            const __m256 all = _mm256_broadcast_ss(x + r * stride);
            for (int v = 0; v < V; ++v) {
                sum[r][v] = _mm256_fmadd_ps(all, _mm256_load_ps(reinterpret_cast<const float*>(w) + v * 8), sum[r][v]);
            }
        }
    }
    static CM_INLINE void store(char* to, const Sum* sum) { _mm256_store_ps(reinterpret_cast<float*>(to), *sum); }
};

// Compilers interleave the products of all rows, and keep sums on the stack if there are too few registers for that.
// Empty assembly keeps the order of the source: up to it a sum is complete, in a register; or memory is read.
template <bool kKeep, class Sum>
static CM_INLINE void keep_order(Sum& sum) {
    if constexpr (kKeep) asm volatile("" : "+x"(sum));
}
template <bool kKeep>
static CM_INLINE void keep_order() {
    if constexpr (kKeep) asm volatile("" ::: "memory");
}

static CM_INLINE __m256i all_of_dword(const void* x) {
    int32_t dword;
    __builtin_memcpy(&dword, x, sizeof dword);
    return _mm256_set1_epi32(dword);
}

// Two numbers in 32 bits, converted to float32 one after the other.
struct Bf16 : VectorForm {
    using Number = uint16_t;
    using Sum = __m256;
    static constexpr int kSumsPerVector = 1;
    static CM_INLINE Sum zero() { return _mm256_setzero_ps(); }
    static CM_INLINE __m256 one_of(__m256i pairs, int which) {
        const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm256_castsi256_ps(which == 0 ? _mm256_slli_epi32(pairs, 16) : _mm256_and_si256(pairs, high));
    }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const uint16_t* x, int64_t stride, const char* w) {
        constexpr bool kFull = R * V + V > 11;  // registers; other four hold a row, a mask and what is in flight
        for (int which = 0; which < 2; ++which) {
            __m256 column[V];
            for (int v = 0; v < V; ++v) {
                column[v] = one_of(_mm256_load_si256(reinterpret_cast<const __m256i*>(w) + v), which);
            }
            for (int r = 0; r < R; ++r) {
                const __m256 all = one_of(all_of_dword(x + r * stride), which);
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = _mm256_fmadd_ps(all, column[v], sum[r][v]);
                    keep_order<kFull>(sum[r][v]);
                }
            }
            keep_order<kFull>();  // the other half loads again what it needs
        }
    }
    static CM_INLINE void store(char* to, const Sum* sum) { F32::store(to, sum); }
};

// In 16 bits, where a sum of two products does not overflow. A register of sums holds four columns, two partial sums of
// each.
struct Int8 : VectorForm {
    using Number = int8_t;
    using Sum = __m256i;
    static constexpr int kSumsPerVector = 2;
    static CM_INLINE Sum zero() { return _mm256_setzero_si256(); }
    static CM_INLINE __m256i wide_at(const char* w, int v) {
        return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w) + v));
    }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const int8_t* x, int64_t stride, const char* w) {
        __m256i wide[V];
        for (int v = 0; v < V && R > 1; ++v) wide[v] = wide_at(w, v);
        for (int r = 0; r < R; ++r) {
            const auto* row = reinterpret_cast<const float*>(x + r * stride);
            const __m256i all = _mm256_cvtepi8_epi16(_mm_castps_si128(_mm_broadcast_ss(row)));
            for (int v = 0; v < V; ++v) {
                sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(all, R > 1 ? wide[v] : wide_at(w, v)));
                keep_order<true>(sum[r][v]);
            }
        }
    }
    // hadd works within halves of a register: restore the order of columns.
    static CM_INLINE void store(char* to, const Sum* sum) {
        const __m256i mixed = _mm256_hadd_epi32(sum[0], sum[1]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
    }
};

// A panel is four vectors wide; as many at once as there are registers: all for few rows, so that lines are read in
// turn.
template <class Form, int R, int P>
CM_NOINLINE void fixed_block(const Block<Form>& b) {
    constexpr int kSide = 4 / sizeof(typename Form::Number);
    constexpr int kRowSums = R * Form::kSumsPerVector;
    constexpr int kVectors = kRowSums <= 2 ? 4 : kRowSums <= 4 ? 2 : 2 / Form::kSumsPerVector;
    constexpr int kSums = kVectors * Form::kSumsPerVector;
    for (int part = 0; part < kStepBytes; part += kVectors * 32) {
        typename Form::Sum sum[R][kSums];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kSums; ++v) sum[r][v] = Form::zero();
        const auto* x = b.x;
        Ahead ahead = b.ahead;
        Weights<Form, 1> weights(b);
        for (int first = 0; first < b.steps; first += weights.steps()) {
            const char* panel = weights.next(0) + part;
            for (int step = 0; step < weights.steps(); ++step) {
                const char* from = ahead.pass(1) + part;
                for (int line = 0; line < kVectors * 32 && !is_short<Form>; line += 64)
                    _mm_prefetch(from + line, _MM_HINT_T0);
                Form::template add<R, kSums>(sum, x, b.stride, panel);
                x += kSide;
                panel += kStepBytes;
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kVectors; ++v) {
                char* to = static_cast<char*>(b.sums) + r * kStepBytes + part + v * 32;
                Form::store(to, &sum[r][v * Form::kSumsPerVector]);
            }
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
