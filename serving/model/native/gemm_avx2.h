// Products of a few rows with a panel in AVX2, part by part, since there are only sixteen registers. It multiplies
// neither bf16 nor bytes well: `Wide` is the form for rows converted to float32 or int16 once, which gemm.h does from
// kWidenedRows rows on.
#pragma once
#include "gemm_parts.h"

namespace cm::CM_ISA_NAMESPACE {

struct VectorForm {
    static constexpr int kMaxRows = 6;
    static constexpr int kMaxRestoredRows = 2;  // for more rows several passes over a panel
    static constexpr int kMaxPairedRows = 0;
    static constexpr bool kUnsignedRows = false;
    static constexpr bool kTiles = false;
    // Of the four of a panel, as many at once as there are registers for sums: all for few rows, so that lines are read
    // in turn.
    static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }
};

// Whether R rows times V vectors take all registers. Compilers would interleave the products of all rows and keep sums
// on the stack; assembly keeps the order of the source, without copies of sums.
template <int R, int V>
constexpr bool kFull = R * V + V > 11;
// Even without one for a mask.
template <int R, int V>
constexpr bool kOverfull = R * V + V > 13;

// sum += a * b, sum += a
template <bool kInOrder>
static CM_INLINE void add_product(__m256& sum, __m256 a, __m256 b) {
    if constexpr (kInOrder) {
        asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    } else {
        sum = _mm256_fmadd_ps(a, b, sum);
    }
}
static CM_INLINE void add_to(__m256i& sum, __m256i a) { asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(a)); }

// Address in row r of at most six, from the first and the fourth, so that no address is computed for a row.
template <class Number>
static CM_INLINE const Number* row_of(const Number* x, const Number* fourth, int64_t stride, int r) {
    return r < 3 ? x + r * stride : fourth + (r - 3) * stride;
}

struct F32 : VectorForm {
    using Number = float;
    using Sum = __m256;
    static constexpr int kDepth = 1;
    static constexpr int kSumsPerVector = 1;
    static CM_INLINE Sum zero() { return _mm256_setzero_ps(); }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const float* x, const float* fourth, int64_t stride, const char* w) {
        __m256 column[V];
        for (int v = 0; v < V; ++v) column[v] = _mm256_load_ps(reinterpret_cast<const float*>(w) + v * 8);
        for (int r = 0; r < R; ++r) {
            const __m256 all = _mm256_broadcast_ss(row_of(x, fourth, stride, r));
            for (int v = 0; v < V; ++v) add_product<kFull<R, V>>(sum[r][v], all, column[v]);
        }
    }
    static CM_INLINE void store(char* to, const Sum* sum) { _mm256_store_ps(reinterpret_cast<float*>(to), *sum); }
};

alignas(32) static constexpr uint32_t kUpperHalves[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                         0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

// One of the two numbers in 32 bits, as float32; with the mask in memory or in a register.
template <bool kInMemory>
static CM_INLINE __m256 one_of(__m256i pairs, int which) {
    if (which == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    if constexpr (kInMemory) {
        asm("vpand %1, %0, %0" : "+x"(pairs) : "m"(kUpperHalves));
        return _mm256_castsi256_ps(pairs);
    }
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(kUpperHalves[0]))));
}
template <bool kInMemory>
static CM_INLINE __m256 one_of(const uint16_t* x, int which) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return one_of<kInMemory>(_mm256_set1_epi32(pair), which);
}
template <bool kInMemory>
static CM_INLINE __m256 one_of(const float* x, int which) { return _mm256_broadcast_ss(x + which); }

// Weights, and rows unless they were before, are converted to float32.
template <class X>
struct Bf16Rows : VectorForm {
    using Wide = Bf16Rows<float>;
    static constexpr int kWidenedRows = 5;
    using Number = X;
    using Sum = __m256;
    static constexpr int kDepth = 2;
    static constexpr int kSumsPerVector = 1;
    static CM_INLINE Sum zero() { return _mm256_setzero_ps(); }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const X* x, const X* fourth, int64_t stride, const char* w) {
        for (int which = 0; which < 2; ++which) {
            __m256 column[V];
            for (int v = 0; v < V; ++v) {
                column[v] = one_of<kOverfull<R, V>>(_mm256_load_si256(reinterpret_cast<const __m256i*>(w) + v), which);
            }
            for (int r = 0; r < R; ++r) {
                const __m256 all = one_of<kOverfull<R, V>>(row_of(x, fourth, stride, r), which);
                for (int v = 0; v < V; ++v) add_product<kFull<R, V>>(sum[r][v], all, column[v]);
            }
            if constexpr (kFull<R, V>) asm volatile("" ::: "memory");  // the other half loads again what it needs
        }
    }
    static CM_INLINE void store(char* to, const Sum* sum) { F32::store(to, sum); }
};
using Bf16 = Bf16Rows<uint16_t>;

static CM_INLINE __m256i four_of(const int16_t* x) {
    int64_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi64x(four);
}
static CM_INLINE __m256i four_of(const int8_t* x) {
    return _mm256_cvtepi8_epi16(_mm_castps_si128(_mm_broadcast_ss(reinterpret_cast<const float*>(x))));
}

// In 16 bits, where a sum of two products does not overflow. A register of sums holds four columns, two partial sums of
// each.
template <class X>
struct Int8Rows : VectorForm {
    using Wide = Int8Rows<int16_t>;
    static constexpr int kWidenedRows = 3;
    using Number = X;
    using Sum = __m256i;
    static constexpr int kDepth = 4;
    static constexpr int kSumsPerVector = 2;
    static constexpr int vectors(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
    static CM_INLINE Sum zero() { return _mm256_setzero_si256(); }
    static CM_INLINE __m256i wide_at(const char* w, int v) {
        return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w) + v));
    }
    template <int R, int V>
    static CM_INLINE void add(Sum (&sum)[R][V], const X* x, const X* fourth, int64_t stride, const char* w) {
        __m256i wide[V];
        for (int v = 0; v < V && R > 1; ++v) wide[v] = wide_at(w, v);
        for (int r = 0; r < R; ++r) {
            const __m256i all = four_of(row_of(x, fourth, stride, r));
            for (int v = 0; v < V; ++v) add_to(sum[r][v], _mm256_madd_epi16(all, R > 1 ? wide[v] : wide_at(w, v)));
        }
    }
    // hadd works within halves of a register: restore the order of columns.
    static CM_INLINE void store(char* to, const Sum* sum) {
        const __m256i mixed = _mm256_hadd_epi32(sum[0], sum[1]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
    }
};
using Int8 = Int8Rows<int8_t>;

template <class Form, int R, int P>
CM_NOINLINE void fixed_block(const Block<Form>& b) {
    constexpr int kVectors = Form::vectors(R);
    constexpr int kSums = kVectors * Form::kSumsPerVector;
    for (int part = 0; part < kStepBytes; part += kVectors * 32) {
        typename Form::Sum sum[R][kSums];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kSums; ++v) sum[r][v] = Form::zero();
        const auto *x = b.x, *fourth = b.x + 3 * b.stride;
        Ahead ahead = b.ahead;
        Weights<Form, 1> weights(b);
        for (int first = 0; first < b.steps; first += weights.steps()) {
            const char* panel = weights.next(0) + part;
            for (int step = 0; step < weights.steps(); ++step) {
                const char* from = ahead.pass(1) + part;
                for (int line = 0; line < kVectors * 32 && !is_short<Form>; line += 64)
                    _mm_prefetch(from + line, _MM_HINT_T0);
                Form::template add<R, kSums>(sum, x, fourth, b.stride, panel);
                x += Form::kDepth;
                fourth += Form::kDepth;
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
