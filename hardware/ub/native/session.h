// A session of a rank, one micro-batch of its step, and where the time of its rounds went.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "patience.h"
#include "window.h"

namespace cm::ub {

inline int64_t ns_of(Clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

// When an expert rank took an ask, and when the results were whole.
struct ServiceTimes {
    int64_t taken = 0, done = 0;  // steady clock [ns]
};

inline void stamp(Word& answer, const ServiceTimes& when) {
    answer.taken.store(when.taken, std::memory_order_relaxed);
    answer.done.store(when.done, std::memory_order_relaxed);
}
inline ServiceTimes stamp_of(const Word& answer) {
    return {answer.taken.load(std::memory_order_relaxed), answer.done.load(std::memory_order_relaxed)};
}

struct Session {
    uint32_t round = 0;
    RankSet open = 0;    // whose answers are awaited
    uint32_t count = 0;  // entries of own rows for own experts, until they are computed
    bool taken = false;  // and those are being computed
    std::array<uint32_t, kMostRanks> sent{};  // entries for each rank in this round

    int64_t asked = 0;  // when the round began [ns]
    ServiceTimes last;  // the service that ended last, of this round
    bool timed = true;  // all of its services have times of this host's clock

    void begin_round(Clock::time_point now) {
        ++round;
        asked = ns_of(now);
        last = {};
        timed = true;
    }
    // The own experts have computed the own rows.
    void serve(const ServiceTimes& by) {
        count = 0;
        note(by);
    }
    // A time before the round is one that a rank of another host has not stored.
    void note(const ServiceTimes& by) {
        timed &= by.taken >= asked && by.done >= by.taken;
        if (by.done > last.done) last = by;
    }
};

// Sums over the rounds of all sessions [ns], each by the rank that answered last; written by the rank, read by any thread.
class SessionParts {
  public:
    // The results of a round are added now.
    void add(const Session& round, Clock::time_point now) {
        if (!round.timed || round.last.done == 0) return;
        const std::array<int64_t, 4> more{1, round.last.taken - round.asked, round.last.done - round.last.taken,
                                          ns_of(now) - round.last.done};
        for (size_t i = 0; i < sums_.size(); ++i)
            sums_[i].store(sums_[i].load(std::memory_order_relaxed) + more[i], std::memory_order_relaxed);
    }
    // to: [4] rounds; from asking to being taken (A2E), computing (experts), from then to adding (E2A).
    void read(int64_t* to) const {
        for (size_t i = 0; i < sums_.size(); ++i) to[i] = sums_[i].load(std::memory_order_relaxed);
    }

  private:
    std::array<std::atomic<int64_t>, 4> sums_{};
};

}  // namespace cm::ub
