// The stages of a wait: pause while the response is likely to arrive soon, yield while there are cores for all ranks,
// then sleep.
#pragma once
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "bell.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cm::ub {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

struct Patience {
    std::chrono::nanoseconds pause{2000};
    std::chrono::nanoseconds yield{50000};    // none if a host's ranks outnumber its cores
    std::chrono::nanoseconds slice{2000000};  // sleep between two checks for dead ranks
    std::chrono::nanoseconds doze{100000000};  // the same while no rank has work

    static Patience of(int ranks_on_host, int cores) {
        Patience patience;
        if (ranks_on_host > cores) patience.yield = std::chrono::nanoseconds(0);
        return patience;
    }
};

inline void pause_briefly() {
#if defined(__x86_64__)
    for (int i = 0; i < 8; ++i) _mm_pause();
#elif defined(__aarch64__)
    for (int i = 0; i < 8; ++i) asm volatile("yield");
#endif
}

// Wait at a bell until `seen()`; `between()` is asked after each slice of sleep and ends the wait, too.
// open: what is waited for; ranks that never post, as the owner itself, stand for the shell.
// False if the deadline came first.
template <class Seen, class Between>
bool wait_at(Bell& bell, const Patience& patience, Deadline deadline, const Wanted& open, Seen&& seen,
             Between&& between) {
    if (seen()) return true;
    const Clock::time_point begun = Clock::now();
    Clock::time_point now = begun;
    while (now - begun < patience.pause) {
        pause_briefly();
        if (seen()) return true;
        now = Clock::now();
    }
    while (now - begun < patience.pause + patience.yield) {
        ::sched_yield();
        if (seen()) return true;
        now = Clock::now();
    }
    for (;;) {
        if (between()) {
            seen();  // a peer's post before its end counts
            return true;
        }
        if (now >= deadline) return false;
        const std::chrono::nanoseconds left = deadline - now;
        sleep_at(bell, std::min(left, patience.slice).count(), open, seen);
        if (seen()) return true;
        now = Clock::now();
    }
}

}  // namespace cm::ub
