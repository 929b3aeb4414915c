// Waking a rank that sleeps at its window. One thread sleeps there at a time, in whatever process.
//
// The sleeper says that it sleeps, then looks again; the others store, then look whether it sleeps. Both are
// sequentially consistent, so one of them sees the other, and a word costs no system call while its reader is awake.
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

// After a sequentially consistent store that the owner of the bell may wait for.
inline void ring(Bell& bell) {
    if (bell.asleep.load(std::memory_order_seq_cst) == 0) return;
    bell.rung.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &bell.rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleep until the bell is rung or the time [ns] is over, unless there is something to see already.
template <class Seen>
void sleep_at(Bell& bell, int64_t ns, Seen&& seen) {
    const uint32_t before = bell.rung.load(std::memory_order_seq_cst);
    bell.asleep.store(1, std::memory_order_seq_cst);
    if (!seen() && ns > 0) {
        const timespec limit{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
        ::syscall(SYS_futex, &bell.rung, FUTEX_WAIT, before, &limit, nullptr, 0);
    }
    bell.asleep.store(0, std::memory_order_relaxed);
}

}  // namespace cm::ub
