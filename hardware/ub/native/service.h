// Service: a rank with experts takes all asks that are there, computes their rows, of whatever layer, and answers them.
// It reads rows where their ranks have staged them, and writes each result to [row][choice] there.
#pragma once
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Service {
  public:
    explicit Service(Exchange& exchange) : exchange_(exchange), sources_(exchange.take()) {}

    // Whose rows are to be computed; maybe nobody's.
    RankSet sources() const { return sources_; }
    uint32_t count(uint32_t source) const { return exchange_.count_from(source); }
    const Entry* entries(uint32_t source) const { return exchange_.window(source).list(exchange_.self()); }
    const char* row(uint32_t source, const Entry& entry) const { return exchange_.window(source).row(entry.row); }
    template <class Number = float>
    Number* result(uint32_t source, const Entry& entry) const {
        return exchange_.window(source).result<Number>(entry.row, entry.choice);
    }

    // A peer's list says where this rank will write: nothing outside of that peer's results.
    Outcome check() const {
        Outcome found;
        Exchange::for_each(sources_, [&](uint32_t source) {
            const WindowShape& shape = exchange_.window(source).shape();
            const uint32_t entries_there = count(source);
            if (entries_there > shape.max_entries()) {
                found = exchange_.mismatch(source);
                return;
            }
            const Entry* entry = entries(source);
            for (uint32_t i = 0; i < entries_there; ++i)
                if (entry[i].row >= shape.max_rows || entry[i].choice >= shape.top_k)
                    found = exchange_.mismatch(source);
        });
        return found;
    }

    // All results are whole.
    void answer() { exchange_.answer(); }

  private:
    Exchange& exchange_;
    RankSet sources_;
};

}  // namespace cm::ub
