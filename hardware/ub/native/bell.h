// Wakes a rank that sleeps at its window. At most one thread sleeps there at a time, in any process.
//
// The sleeper publishes the peers it waits for, then checks again; the peers store, then check whether it waits for
// them. Both are sequentially consistent, so one of them sees the other, and a word costs no system call while its
// reader is awake. The last awaited peer wakes the sleeper. A peer that checks one round late may remove its bit too
// early: then the last of the others wakes the sleeper, which checks and publishes again.
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
    const bool asleep =
        bell.awaited.load(std::memory_order_seq_cst) != 0 || bell.dozing.load(std::memory_order_seq_cst);
    if (asleep) wake_sleeper(bell);
}

// The same after this rank's word, if it is the last awaited one, or any word suffices.
inline void ring_as(Bell& bell, uint32_t rank) {
    if (bell.dozing.load(std::memory_order_seq_cst)) return wake_sleeper(bell);
    if (!has(bell.awaited.load(std::memory_order_seq_cst), rank)) return;
    if (bell.awaited.fetch_and(~just(rank), std::memory_order_seq_cst) == just(rank)) wake_sleeper(bell);
}

// Sleep until woken or the time [ns] is over, unless the condition is already met.
// open: the awaited ranks; `seen` removes those whose words it finds.
template <class Seen>
void sleep_at(Bell& bell, int64_t ns, const RankSet& open, Seen&& seen) {
    const uint32_t before = bell.rung.load(std::memory_order_seq_cst);
    const RankSet said = open;
    bell.awaited.store(said, std::memory_order_seq_cst);
    if (!seen() && ns > 0) {
        const RankSet came = said & ~open;  // perhaps before they could see that they are awaited
        if (came == 0 || (bell.awaited.fetch_and(~came, std::memory_order_seq_cst) & ~came) != 0) {
            sleep_until_rung(bell, before, ns);
        }
    }
    bell.awaited.store(0, std::memory_order_relaxed);
}

// The same without particular ranks: the first word wakes.
template <class Seen>
void doze_at(Bell& bell, int64_t ns, Seen&& seen) {
    const uint32_t before = bell.rung.load(std::memory_order_seq_cst);
    bell.dozing.store(1, std::memory_order_seq_cst);
    if (!seen() && ns > 0) sleep_until_rung(bell, before, ns);
    bell.dozing.store(0, std::memory_order_relaxed);
}

}  // namespace cm::ub
