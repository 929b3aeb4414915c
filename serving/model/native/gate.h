// Routing of a row to experts with weights: the rules of experts.py, with the lowest id first on ties.
#pragma once
#include <cmath>
#include <cstdint>

#include "interface.h"
#include "isa.h"

namespace cm::CM_ISA_NAMESPACE {

// Memory to route one row.
struct GateSpace {
    float* choice;  // [experts]: values by which experts are chosen
    float* worth;   // [groups]
    uint8_t* open;  // [experts + groups]: whether it may still be chosen
};

// The best open one, by value; some open one even if all are NaN.
inline int best_open(const float* value, const uint8_t* open, int size) {
    int best = -1;
    for (int i = 0; i < size; ++i) {
        if (open[i] && (best < 0 || value[i] > value[best])) best = i;
    }
    return best;
}

// Logits -> scores, in place.
inline void scores_of(const cm_model& m, float* logits) {
    if (m.sigmoid_scores) {
        for (int e = 0; e < m.experts; ++e) {
            logits[e] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
        }
        return;
    }
    float most = logits[0], sum = 0;
    for (int e = 1; e < m.experts; ++e) most = logits[e] > most ? logits[e] : most;
    for (int e = 0; e < m.experts; ++e) sum += logits[e] = std::exp(logits[e] - most);
    for (int e = 0; e < m.experts; ++e) logits[e] /= sum;
}

// A group counts as its two best experts (DeepSeek-V3) or its best one (V2).
inline float worth_of(const cm_model& m, const float* choice, int size) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = 0; e < size; ++e) {
        if (choice[e] > best) {
            second = best;
            best = choice[e];
        } else if (choice[e] > second) {
            second = choice[e];
        }
    }
    return m.sigmoid_scores ? best + second : best;
}

// Closes all experts outside of the best groups.
inline void keep_best_groups(const cm_model& m, const GateSpace& space) {
    const int size = m.experts / m.expert_groups;
    uint8_t* open_groups = space.open + m.experts;
    for (int group = 0; group < m.expert_groups; ++group) {
        space.worth[group] = worth_of(m, space.choice + group * size, size);
        open_groups[group] = 1;
    }
    for (int e = 0; e < m.experts; ++e) space.open[e] = 0;
    for (int kept = 0; kept < m.kept_groups; ++kept) {
        const int group = best_open(space.worth, open_groups, m.expert_groups);
        open_groups[group] = 0;
        for (int e = 0; e < size; ++e) space.open[group * size + e] = 1;
    }
}

// Closes masked experts. If the kept groups have too few others, which happens only with scores that are NaN, any others
// are opened: a masked expert is never chosen.
inline void close_masked(const cm_model& m, const uint8_t* masked, const GateSpace& space) {
    int left = 0;
    for (int e = 0; e < m.experts; ++e) {
        if (masked[e]) space.open[e] = 0;
        left += space.open[e];
    }
    for (int e = 0; e < m.experts && left < m.top_k; ++e) {
        if (masked[e] || space.open[e]) continue;
        space.open[e] = 1;
        ++left;
    }
}

// masked: [experts], or null: which ones no rank holds; at least top_k others are left. They count like experts with the
// bias -INFINITY: in the choice of groups too, but not in the softmax of scores.
// logits [experts], overwritten -> chosen, weight [top_k].
inline void route(const cm_model& m, const float* bias, const uint8_t* masked, float* logits, const GateSpace& space,
                  int32_t* chosen, float* weight) {
    scores_of(m, logits);
    for (int e = 0; e < m.experts; ++e) {
        space.choice[e] = masked && masked[e] ? -INFINITY : bias ? logits[e] + bias[e] : logits[e];
        space.open[e] = 1;
    }
    if (m.expert_groups > 1) keep_best_groups(m, space);
    if (masked) close_masked(m, masked, space);
    float sum = 0;
    for (int k = 0; k < m.top_k; ++k) {
        chosen[k] = best_open(space.choice, space.open, m.experts);
        space.open[chosen[k]] = 0;
        weight[k] = logits[chosen[k]];
        sum += weight[k];
    }
    for (int k = 0; k < m.top_k; ++k) {
        weight[k] = (m.normalise_weights ? weight[k] / (sum + 1e-20f) : weight[k]) * m.routed_scaling;
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
