// Dispatch: a rank stages each of its rows once, lists who takes it, and asks those; they read it where it lies, and write
// each result to [row][choice] here. The rank adds its choices in order of expert ids: place and order do not depend on
// where experts are, and so neither does the sum.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Dispatch {
  public:
    explicit Dispatch(Exchange& exchange, uint32_t half = 0) : exchange_(exchange), half_(half) {}

    // Where this rank's row is to be written, once, before `ask`; after all results of the round before were read.
    char* stage(uint32_t row) const { return own().row(row); }

    // List a row for an expert slot of a rank. At most max_rows * top_k entries.
    void send(uint32_t rank, uint32_t row, uint32_t choice, uint32_t slot) {
        own().list(rank, half_)[counts_[rank]++] = {row, static_cast<uint16_t>(choice), static_cast<uint16_t>(slot)};
    }

    // Number of entries for a rank so far.
    uint32_t sent(uint32_t rank) const { return counts_[rank]; }

    // Rows and lists are whole.
    void ask(Clock::time_point now = Clock::now()) { exchange_.ask(counts_, half_, now); }

    // Add a row's results, float32, to `sum`, each times its weight, in order of expert ids; quickest if choices are in that
    // order. Once all have answered.
    // ids, weights: [top_k], of different experts; columns first ... end - 1.
    void add(uint32_t row, const int32_t* ids, const float* weights, uint32_t first, uint32_t end,
             float* sum) const {
        uint32_t order[kMostChoices];
        const uint32_t top_k = exchange_.shape().top_k;
        for (uint32_t choice = 0; choice < top_k; ++choice) {
            uint32_t place = choice;
            for (; place > 0 && ids[order[place - 1]] > ids[choice]; --place) order[place] = order[place - 1];
            order[place] = choice;
        }
        for (uint32_t place = 0; place < top_k; ++place) {
            const float weight = weights[order[place]], *result = own().result(row, order[place]) + first;
            for (uint32_t i = 0; i < end - first; ++i) sum[first + i] = std::fma(weight, result[i], sum[first + i]);
        }
    }

  private:
    const Window& own() const { return exchange_.window(exchange_.self()); }

    Exchange& exchange_;
    uint32_t half_;
    std::array<uint32_t, kMostRanks> counts_{};
};

}  // namespace cm::ub
