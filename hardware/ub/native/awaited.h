// For whom a rank waits, and has waited.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "patience.h"
#include "window.h"

namespace cm::ub {

// The rank that a rank waits for, and since when; written by the rank, read by any thread.
class Awaited {
  public:
    void note(uint32_t rank) {
        if (rank_.load(std::memory_order_relaxed) == static_cast<int32_t>(rank)) return;
        since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
        rank_.store(static_cast<int32_t>(rank), std::memory_order_release);
    }
    void end() { rank_.store(-1, std::memory_order_relaxed); }
    // The awaited rank, or -1; and the time waited.
    int32_t look(std::chrono::nanoseconds& waited) const {
        const int32_t rank = rank_.load(std::memory_order_acquire);
        waited = Clock::now().time_since_epoch() - std::chrono::nanoseconds(since_.load(std::memory_order_relaxed));
        return rank;
    }

  private:
    std::atomic<int32_t> rank_{-1};
    std::atomic<int64_t> since_{0};
};

// Time waited, by the last awaited rank; written by the rank, read by any thread.
class Waited {
  public:
    void add(uint32_t rank, std::chrono::nanoseconds time) {
        const int64_t before = ns_[rank].load(std::memory_order_relaxed);
        ns_[rank].store(before + time.count(), std::memory_order_relaxed);
    }
    int64_t ns(uint32_t rank) const { return ns_[rank].load(std::memory_order_relaxed); }

  private:
    std::array<std::atomic<int64_t>, kMostRanks> ns_{};
};

}  // namespace cm::ub
