// Dispatch: a source stages each row once and lists its destinations, which read it in place. Work that needs no other
// rank can run between `announce` and `await`.
#pragma once
#include <array>
#include <cstdint>

#include "exchange.h"

namespace cm::ub {

class Dispatch {
  public:
    // sources, experts: ranks that have rows, and ranks that have experts; usually both are all members.
    Dispatch(Exchange& exchange, RankSet sources, RankSet experts)
        : exchange_(exchange), sources_(sources & exchange.members()), experts_(experts & exchange.members()) {}

    // Address of this rank's row, to be written once, before `announce`.
    char* stage(uint32_t row) const { return exchange_.window(exchange_.self()).row(row); }

    // List a row for an expert slot of a rank. At most max_rows * top_k entries.
    void send(uint32_t rank, uint32_t row, uint32_t choice, uint32_t slot) {
        Entry* list = exchange_.window(exchange_.self()).list(rank);
        list[counts_[rank]++] = {row, static_cast<uint16_t>(choice), static_cast<uint16_t>(slot)};
    }

    // Number of entries for a rank so far.
    uint32_t sent(uint32_t rank) const { return counts_[rank]; }

    // Announce that rows and lists are complete. Every member calls this and `await`, whether or not it has rows or
    // experts.
    void announce() {
        exchange_.begin_round();
        if (!has(sources_, exchange_.self())) return;
        exchange_.for_each(experts_, [&](uint32_t rank) { exchange_.post(rank, counts_[rank]); });
    }

    // The same from a rank that has no rows, now or later in this step.
    void announce_no_more() {
        exchange_.begin_round();
        if (!has(sources_, exchange_.self())) return;
        exchange_.for_each(experts_, [&](uint32_t rank) { exchange_.post(rank, kNoMore); });
    }

    // Wait for incoming rows.
    Outcome await(Deadline deadline) {
        if (!has(experts_, exchange_.self())) return {};
        const Outcome outcome = exchange_.await(sources_, deadline);
        return outcome ? check() : outcome;
    }

    // Incoming entries: valid after `await`, until the next round is announced.
    RankSet sources() const { return has(experts_, exchange_.self()) ? sources_ : 0; }
    uint32_t count(uint32_t source) const {
        const uint32_t said = has(sources(), source) ? exchange_.count_from(source) : 0;
        return said == kNoMore ? 0 : said;
    }
    // Whether no source has any more rows and the step is over. No combine follows in that case.
    bool over() const {
        for (RankSet left = sources(); left; left &= left - 1)
            if (exchange_.count_from(static_cast<uint32_t>(__builtin_ctzll(left))) != kNoMore) return false;
        return true;
    }
    const Entry* entries(uint32_t source) const { return exchange_.window(source).list(exchange_.self()); }
    const char* row(uint32_t source, const Entry& entry) const { return exchange_.window(source).row(entry.row); }

  private:
    // A peer's list determines where this rank will write: allow nothing outside of that peer's results.
    Outcome check() const {
        Outcome found;
        exchange_.for_each(sources_, [&](uint32_t source) {
            const Entry* entry = entries(source);
            for (uint32_t i = 0; i < count(source); ++i)
                if (entry[i].row >= exchange_.shape().max_rows || entry[i].choice >= exchange_.shape().top_k)
                    found = exchange_.mismatch(source);
        });
        return found;
    }

    Exchange& exchange_;
    RankSet sources_, experts_;
    std::array<uint32_t, kMostRanks> counts_{};
};

}  // namespace cm::ub
