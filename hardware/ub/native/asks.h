// What a rank with experts knows of its askers: whose asks it has not taken yet, and who will ask soon.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "announcement.h"
#include "patience.h"
#include "window.h"

namespace cm::ub {

constexpr uint32_t kAnyCount = ~uint32_t{0};

// Sessions of ranks, by micro-batch.
using Sessions = std::array<RankSet, kMicroBatches>;

// How long a rank with experts waits for rows to serve together. A session of at most `few` entries is small.
struct Gathering {
    std::chrono::nanoseconds most{0};           // for ranks that compute at the moment
    std::chrono::nanoseconds between_steps{0};  // for ranks that are between two steps; only without attention here
    uint32_t few = kAnyCount;
};

class Asks {
  public:
    // An epoch begins, or one rank's part in it: `hello` is older than any ask.
    void begin(uint64_t hello) {
        *this = {};
        for (auto& words : last_) words.fill(hello);
    }
    void begin(uint64_t hello, uint32_t rank) {
        answered_[rank] = {};
        for (auto& words : last_) words[rank] = hello;
    }

    // Rounds, a bit each, for which a rank asks in the own window with at most so many entries, and was not taken yet.
    uint64_t rounds(const Window& own, uint32_t rank, uint32_t most = kAnyCount) const {
        uint64_t found = 0;
        for (uint32_t half = 0; half < kMicroBatches; ++half)
            if (const uint64_t word = new_word(own, rank, half, most)) found |= bit(unpack(word).round);
        return found;
    }
    // Take such an ask. False if there is none.
    bool take(const Window& own, uint32_t rank, uint32_t half, uint32_t most, Clock::time_point now) {
        const uint64_t word = new_word(own, rank, half, most);
        if (word == 0) return false;
        if (unpack(word).round == 1)
            pause_[rank] = answered_[rank] == Clock::time_point{} ? Clock::duration{} : now - answered_[rank];
        last_[half][rank] = word;
        return true;
    }
    void on_answer(uint32_t rank, Clock::time_point now) { answered_[rank] = now; }

    // The ask taken last, and its entries.
    uint64_t last(uint32_t rank, uint32_t half) const { return last_[half][rank]; }
    uint32_t count(uint32_t rank, uint32_t half = 0) const { return unpack(last_[half][rank]).count; }

    // Whether a rank will soon ask for one of these rounds: it computes at the moment, or is between two steps.
    bool joins_soon(const Progress& progress, uint32_t rank, uint64_t rounds, Clock::time_point now) const {
        const Phase phase = progress.shown();
        if (phase == Phase::kWaiting || (phase == Phase::kAway && now >= due(rank))) return false;
        uint64_t next = 0;
        for (const auto& words : last_) {
            const Announcement last = unpack(words[rank]);
            if (phase == Phase::kComputing && progress.step() == last.step) next |= bit(last.round + 1);
        }
        return (rounds & (next ? next : bit(1))) != 0;
    }
    // When a rank that is between two steps should have begun the next: pauses vary. One that is later has no work.
    Deadline due(uint32_t rank) const { return answered_[rank] + 2 * std::min<Clock::duration>(pause_[rank], kLongest); }

  private:
    static constexpr std::chrono::milliseconds kLongest{20};  // pause between two steps; longer ones are rests

    static uint64_t bit(uint32_t round) { return uint64_t{1} << round % 64; }
    // 0 if there is none.
    uint64_t new_word(const Window& own, uint32_t rank, uint32_t half, uint32_t most) const {
        const uint64_t word = own.word(Kind::kAsk, rank, half).load(std::memory_order_seq_cst), before = last_[half][rank];
        if (word == before) return 0;
        const Announcement said = unpack(word), last = unpack(before);
        return same_epoch(said, last) && rounds_ahead(said, last) > 0 && said.count <= most ? word : 0;
    }

    std::array<std::array<uint64_t, kMostRanks>, kMicroBatches> last_{};
    std::array<Clock::time_point, kMostRanks> answered_{};
    std::array<Clock::duration, kMostRanks> pause_{};  // from the last answer of a step to the first ask of the next
};

}  // namespace cm::ub
