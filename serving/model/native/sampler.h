// From a row of logits to a token: the rules of sampler.py, without those that change logits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "filters.h"
#include "interface.h"
#include "isa.h"
#include "rows.h"

namespace cm::CM_ISA_NAMESPACE {

constexpr int kNotFinite = -1;
constexpr int kNotDrawn = -2;  // no sample: an earlier token differs, or the grammar allows none
constexpr int kSumBlock = 256;  // weights per stored sum, so that sampling searches one block only

// The first of the largest logits; kNotFinite if any is a NaN or infinite.
inline int largest_logit(const float* logits, int vocab) {
    Vec most = splat(logits[0]), spoiled = zero();
    each_vec(vocab, [&](int i, int lanes) {
        const Vec v = lanes == kLanes ? load(logits + i) : load_n(logits + i, lanes);
        spoiled = add(spoiled, mul(v, zero()));  // 0, or permanently NaN
        if (lanes == kLanes) most = max(most, v);
    });
    float best = reduce_max(most);
    for (int i = vocab / kLanes * kLanes; i < vocab; ++i) best = logits[i] > best ? logits[i] : best;
    if (reduce_add(spoiled) != 0) return kNotFinite;
    int at = 0;
    while (at + 1 < vocab && logits[at] != best) ++at;
    return at;
}

// Hides all tokens except those with their bits set. Returns the first of the largest remaining logits; there must be
// one.
inline int hide_others(float* logits, int vocab, const uint32_t* allowed) {
    int at = -1;
    for (int first = 0; first < vocab; first += 32) {
        const uint32_t word = allowed[first / 32];
        const int end = vocab - first < 32 ? vocab : first + 32;
        for (int i = first; i < end; ++i) {
            if (!(word >> (i - first) & 1)) {
                logits[i] = -INFINITY;
            } else if (at < 0 || logits[i] > logits[at]) {
                at = i;
            }
        }
    }
    return at;
}

// e^x for x <= 0 within 2 units in the last place; 0 below -708, where results would be denormal. In plain arithmetic
// on doubles and their bits, which compilers vectorise.
inline double exp_of_negative(double x) {
    constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves an integer in the low bits
    const double shifted = (x < -708.0 ? -708.0 : x) * 1.4426950408889634 + kRound, n = shifted - kRound;
    const double r = ((x < -708.0 ? -708.0 : x) - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800;
    for (const double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                           1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) {
        p = p * r + c;
    }
    uint64_t bits, scale;
    std::memcpy(&bits, &shifted, sizeof bits);
    scale = (bits + 1023) << 52;
    double power;
    std::memcpy(&power, &scale, sizeof power);
    return x < -708.0 ? 0.0 : p * power;
}

inline void weights_of(const float* logits, int vocab, double temperature, float largest, double* weights) {
    const double most = static_cast<double>(largest) / temperature;
    for (int i = 0; i < vocab; ++i) weights[i] = exp_of_negative(static_cast<double>(logits[i]) / temperature - most);
}

// Sum of one block, in eight chains.
inline double block_sum(const double* weights, int n) {
    double sums[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; ++lane) sums[lane] += weights[i + lane];
    for (; i < n; ++i) sums[0] += weights[i];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The first id, in order of ids, whose running sum of weights exceeds the share `at` of them. sums: [vocab].
inline int pick(const double* weights, int vocab, double at, double* sums) {
    const int blocks = (vocab + kSumBlock - 1) / kSumBlock;
    double total = 0;
    for (int block = 0; block < blocks; ++block) {
        const int first = block * kSumBlock;
        total += block_sum(weights + first, vocab - first < kSumBlock ? vocab - first : kSumBlock);
        sums[block] = total;
    }
    const double target =
        std::fmin(at * total, std::nextafter(total, 0.0));  // at most the value that only the last weight exceeds
    int block = 0;
    while (sums[block] <= target) ++block;
    double sum = block ? sums[block - 1] : 0.0;
    int last = 0;  // summed one by one, a block may miss its sum by a rounding: then its last weight is chosen
    for (int i = block * kSumBlock; i < vocab && i < (block + 1) * kSumBlock; ++i) {
        if (weights[i] == 0) continue;
        sum += weights[i];
        last = i;
        if (sum > target) break;
    }
    return last;
}

// One token by a sequence's rules; `best` is the most likely. weights, spare: [vocab] each.
inline int draw_beside(int best, const float* logits, int vocab, const cm_sequence& s, int64_t position,
                       double* weights, double* spare) {
    if (s.temperature == 0) return best;
    weights_of(logits, vocab, s.temperature, logits[best], weights);
    filter(weights, vocab, s.top_k, s.top_p, s.min_p, spare);
    return pick(weights, vocab, uniform(s.seed, position), spare);
}

inline int draw(const float* logits, int vocab, const cm_sequence& s, int64_t position, double* weights,
                double* spare) {
    const int best = largest_logit(logits, vocab);
    return best == kNotFinite ? best : draw_beside(best, logits, vocab, s, position, weights, spare);
}

// The same among the tokens with their bits set, at least one. Effects: overwrites the logits of the others.
inline int draw_allowed(float* logits, int vocab, const uint32_t* allowed, const cm_sequence& s, int64_t position,
                        double* weights, double* spare) {
    if (largest_logit(logits, vocab) == kNotFinite) return kNotFinite;
    return draw_beside(hide_others(logits, vocab, allowed), logits, vocab, s, position, weights, spare);
}

}  // namespace cm::CM_ISA_NAMESPACE
