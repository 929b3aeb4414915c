// Service: a rank with experts takes asks that are there, computes their rows, of whatever layer, and answers them.
// It reads rows where their ranks have staged them, and writes each result to [row][choice] there.
#pragma once
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Service {
  public:
    // Takes the sessions of at most so many entries.
    explicit Service(Exchange& exchange, uint32_t most = kAnyCount) : exchange_(exchange), taken_(exchange.take(most)) {}

    // A micro-batch of a rank.
    struct Source {
        uint32_t rank, half;
    };
    // use(source) for all whose rows are to be computed; maybe none.
    template <class Use>
    void each_source(Use&& use) const {
        for (uint32_t half = 0; half < kMicroBatches; ++half)
            Exchange::for_each(taken_[half], [&](uint32_t rank) { use(Source{rank, half}); });
    }
    uint32_t count(Source source) const { return exchange_.count_from(source.rank, source.half); }
    const Entry* entries(Source source) const {
        return exchange_.window(source.rank).list(exchange_.self(), source.half);
    }
    const char* row(Source source, const Entry& entry) const { return exchange_.window(source.rank).row(entry.row); }
    template <class Number = float>
    Number* result(Source source, const Entry& entry) const {
        return exchange_.window(source.rank).result<Number>(entry.row, entry.choice);
    }

    // A peer's list says where this rank will write: nothing outside of that peer's results.
    Outcome check() const {
        Outcome found;
        each_source([&](Source source) {
            const WindowShape& shape = exchange_.window(source.rank).shape();
            const uint32_t entries_there = count(source);
            if (entries_there > shape.max_entries()) {
                found = exchange_.mismatch(source.rank);
                return;
            }
            const Entry* entry = entries(source);
            for (uint32_t i = 0; i < entries_there; ++i)
                if (entry[i].row >= shape.max_rows || entry[i].choice >= shape.top_k)
                    found = exchange_.mismatch(source.rank);
        });
        return found;
    }

    const Sessions& taken() const { return taken_; }

    // All results are whole; `times`: of this service.
    void answer(const ServiceTimes& times = {}) { exchange_.answer(taken_, times); }

  private:
    Exchange& exchange_;
    Sessions taken_;
};

}  // namespace cm::ub
