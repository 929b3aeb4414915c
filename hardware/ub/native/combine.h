// Combine: the rank with the expert writes the result to [row][choice] of the source, which adds its choices in order
// of expert ids. Neither the place nor the order depends on where experts are, so the sum does not either.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Combine {
  public:
    Combine(Exchange& exchange, RankSet sources, RankSet experts)
        : exchange_(exchange), sources_(sources & exchange.members()), experts_(experts & exchange.members()) {}

    // Address of the result for an entry of that source, to be written before `announce`.
    template <class Number = float>
    Number* result(uint32_t source, const Entry& entry) const {
        return exchange_.window(source).result<Number>(entry.row, entry.choice);
    }

    // Announce that all results are complete. Every member calls this and `await`, whether or not it has rows or
    // experts.
    void announce() {
        exchange_.begin_round();
        if (!has(experts_, exchange_.self())) return;
        exchange_.for_each(sources_, [&](uint32_t rank) { exchange_.post(rank, 0); });
    }

    // Wait for all results of this rank's rows.
    Outcome await(Deadline deadline) {
        return has(sources_, exchange_.self()) ? exchange_.await(experts_, deadline) : Outcome{};
    }

    // Add a row's results, float32, to `sum`, each times its weight, in order of expert ids; fastest if choices are in
    // that order.
    // ids, weights: [top_k], of different experts; columns first ... end - 1.
    void add(uint32_t row, const int32_t* ids, const float* weights, uint32_t first, uint32_t end,
             float* sum) const {
        const Window& own = exchange_.window(exchange_.self());
        uint32_t order[kMostChoices];
        const uint32_t top_k = exchange_.shape().top_k;
        for (uint32_t choice = 0; choice < top_k; ++choice) {
            uint32_t place = choice;
            for (; place > 0 && ids[order[place - 1]] > ids[choice]; --place) order[place] = order[place - 1];
            order[place] = choice;
        }
        for (uint32_t place = 0; place < top_k; ++place) {
            add_one(weights[order[place]], own.result(row, order[place]) + first, end - first, sum + first);
        }
    }

  private:
    static void add_one(float weight, const float* result, size_t count, float* sum) {
        for (size_t i = 0; i < count; ++i) sum[i] = std::fma(weight, result[i], sum[i]);
    }

    Exchange& exchange_;
    RankSet sources_, experts_;
};

}  // namespace cm::ub
