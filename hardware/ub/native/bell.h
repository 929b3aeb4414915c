// Wakes a rank that sleeps at its window. At most one thread sleeps there at a time, in any process.
//
// The sleeper says whom it waits for, then looks again; the others store, then look whether it waits for them. Both are
// sequentially consistent, so one of them sees the other, and a word costs no system call while its reader is awake.
// Whoever is the last to be waited for wakes the sleeper. One that comes to look late may take out its name too early:
// then the last of the others wakes the sleeper, which looks and says anew whom it waits for.
// tests/hardware/ub/bell_model.py runs this through every order of stores.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "window.h"

namespace cm::ub {

// What ends a sleep: all of these answers, all of these asks, or any ask.
struct Wanted {
    RankSet answers = 0, asks = 0;
    bool any = false;
};

inline void wake_sleeper(Bell& bell) {
    bell.rung.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &bell.rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void sleep_until_rung(Bell& bell, uint32_t before, int64_t ns) {
    const timespec limit{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    ::syscall(SYS_futex, &bell.rung, FUTEX_WAIT, before, &limit, nullptr, 0);
}

// Wake a sleeper, if any. Call it after a sequentially consistent store that it may wait for.
inline void ring(Bell& bell) {
    const bool asleep = bell.answers.load(std::memory_order_seq_cst) || bell.asks.load(std::memory_order_seq_cst) ||
                        bell.any.load(std::memory_order_seq_cst);
    if (asleep) wake_sleeper(bell);
}

// Raise a rank's epoch and wake it. For the shell; the dead must have been fenced before. Epochs only increase.
inline void raise_epoch(const Window& window, uint64_t epoch, RankSet members) {
    window.membership().lost.store(0, std::memory_order_relaxed);
    window.membership().coming.store(epoch, std::memory_order_relaxed);
    window.membership().members.store(members, std::memory_order_release);
    window.membership().epoch.store(epoch, std::memory_order_seq_cst);
    ring(window.bell());
}

// The same after a rank's word, if that is the last of those that are waited for.
inline void ring_as(Bell& bell, std::atomic<RankSet>& awaited, uint32_t rank) {
    if (!has(awaited.load(std::memory_order_seq_cst), rank)) return;
    if (awaited.fetch_and(~just(rank), std::memory_order_seq_cst) == just(rank)) wake_sleeper(bell);
}

inline void ring_as(Bell& bell, Kind kind, uint32_t rank) {
    if (kind == Kind::kAnswer) return ring_as(bell, bell.answers, rank);
    if (bell.any.load(std::memory_order_seq_cst)) return wake_sleeper(bell);
    ring_as(bell, bell.asks, rank);
}

// Take those out who came before they could see that they are waited for. True if now nobody is left to ring.
inline bool take_out(std::atomic<RankSet>& awaited, RankSet came) {
    return came != 0 && (awaited.fetch_and(~came, std::memory_order_seq_cst) & ~came) == 0;
}

// Sleep until woken or the time [ns] is over, unless there is something to see already. `seen` takes out of `open`
// those whose words it finds.
template <class Seen>
void sleep_at(Bell& bell, int64_t ns, const Wanted& open, Seen&& seen) {
    const uint32_t before = bell.rung.load(std::memory_order_seq_cst);
    const Wanted said = open;
    bell.answers.store(said.answers, std::memory_order_seq_cst);
    bell.asks.store(said.asks, std::memory_order_seq_cst);
    bell.any.store(said.any, std::memory_order_seq_cst);
    if (!seen() && ns > 0) {
        const bool answered = take_out(bell.answers, said.answers & ~open.answers);
        const bool asked = take_out(bell.asks, said.asks & ~open.asks);
        if (!answered && !asked) sleep_until_rung(bell, before, ns);
    }
    bell.answers.store(0, std::memory_order_relaxed);
    bell.asks.store(0, std::memory_order_relaxed);
    bell.any.store(0, std::memory_order_relaxed);
}

}  // namespace cm::ub
