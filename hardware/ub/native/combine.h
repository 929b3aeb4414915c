// Combine: whoever has the expert writes the result to [row][choice] of the source, which adds its choices in order of
// expert ids. The place and the order do not depend on where experts are, and so neither does the sum.
#pragma once
#include <cmath>
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Combine {
  public:
    Combine(Exchange& exchange, RankSet sources, RankSet experts)
        : exchange_(exchange), sources_(sources & exchange.members()), experts_(experts & exchange.members()) {}

    // Where the result for an entry of that source is to be written, before `run`: `hidden` floats.
    float* result(uint32_t source, const Entry& entry) const {
        return exchange_.window(source).result(entry.row, entry.choice);
    }

    // Announce, and wait for all results of this rank's rows.
    Outcome run(Deadline deadline) {
        exchange_.begin_round();
        const bool source = has(sources_, exchange_.self()), expert = has(experts_, exchange_.self());
        if (expert) exchange_.for_each(sources_, [&](uint32_t rank) { exchange_.post(rank, 0); });
        return source ? exchange_.await(experts_, deadline) : Outcome{};
    }

    // Add a row's results to `sum`, each times its weight, in order of expert ids.
    // ids, weights: [top_k], of different experts; columns first ... end - 1 of `hidden`.
    void add(uint32_t row, const int32_t* ids, const float* weights, uint32_t first, uint32_t end, float* sum) const {
        const Window& own = exchange_.window(exchange_.self());
        const uint32_t top_k = exchange_.shape().top_k;
        for (int64_t last = -1;;) {
            uint32_t next = top_k;
            for (uint32_t choice = 0; choice < top_k; ++choice)
                if (ids[choice] > last && (next == top_k || ids[choice] < ids[next])) next = choice;
            if (next == top_k) return;
            const float* result = own.result(row, next);
            const float weight = weights[next];
            for (uint32_t i = first; i < end; ++i) sum[i] = std::fma(weight, result[i], sum[i]);
            last = ids[next];
        }
    }

  private:
    Exchange& exchange_;
    RankSet sources_, experts_;
};

}  // namespace cm::ub
