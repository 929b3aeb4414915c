// Rounds between the ranks of one epoch: announce to some, wait for some. Dispatch and combine handle the payload.
//
// A step begins with an announcement from all to all, including ranks without rows, and so does an epoch: only then do
// all members know that none is still working in the previous epoch, and may overwrite memory that others read. A step
// has as many pairs of dispatch and combine as the rank with the most of them needs, and ends with a dispatch in which
// all announce that they have no more rows.
//
// A wait accepts a present word before it checks whether the epoch was raised or a member died, and checks all members,
// not only the awaited one, which may itself wait for the dead one.
// tests/hardware/ub/exchange_model.py runs these rules through every order of stores.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "announcement.h"
#include "bell.h"
#include "outcome.h"
#include "patience.h"
#include "watch.h"
#include "window.h"

#ifndef CM_EXCHANGE_POINT  // tests define it, to die at a given point of the protocol
#define CM_EXCHANGE_POINT(place)
#endif

namespace cm::ub {

// Raise a rank's epoch and wake it. For the shell; the dead must have been fenced before. Epochs only increase.
inline void raise_epoch(const Window& window, uint64_t epoch, RankSet members) {
    window.membership().lost.store(0, std::memory_order_relaxed);
    window.membership().coming.store(epoch, std::memory_order_relaxed);
    window.membership().members.store(members, std::memory_order_release);
    window.membership().epoch.store(epoch, std::memory_order_seq_cst);
    ring(window.bell());
}

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

class Exchange {
  public:
    // windows: of all ranks, by rank; `watch` must outlive this object.
    Exchange(uint32_t self, std::vector<Window> windows, Watch& watch, const Patience& patience)
        : self_(self), windows_(std::move(windows)), watch_(watch), patience_(patience) {
        enter();
    }

    uint32_t self() const { return self_; }
    const Window& window(uint32_t rank) const { return windows_[rank]; }
    const WindowShape& shape() const { return windows_[self_].shape(); }
    RankSet members() const { return members_; }
    uint64_t epoch() const { return epoch_; }
    uint32_t step() const { return now_.step; }
    uint32_t count_from(uint32_t rank) const { return counts_[rank]; }  // of the last awaited round

    // Adopt the epoch in the own window. Steps restart.
    void enter() {
        const Membership& named = own().membership();
        do {  // a shell may be raising the next one: its members differ from this one's
            epoch_ = named.epoch.load(std::memory_order_seq_cst);
            members_ = named.members.load(std::memory_order_acquire);
        } while (named.coming.load(std::memory_order_relaxed) != epoch_);
        dead_ = 0;
        now_ = {static_cast<uint32_t>(epoch_ % low_bits(kEpochBits) + 1), ~uint32_t{0}, 0, 0};
        turn_ = ~uint32_t{0};
    }

    // Takes effect with the next wait.
    void wait_with(const Patience& patience) { patience_ = patience; }

    // Replace the window of a rank that is not a member; used from the next `enter` on.
    void replace(uint32_t rank, const Window& window) { windows_[rank] = window; }

    // Wait until the shell has raised the epoch, and adopt it.
    Outcome await_epoch(Deadline deadline) {
        auto raised = [this] { return epoch_raised(); };
        auto nothing = [] { return false; };
        const bool in_time = wait_at(own().bell(), patience_, deadline, just(self_), raised, nothing);
        if (!in_time) return outcome(Ending::kLate, self_);
        enter();
        return {};
    }

    // Begin the next step: send all members a number, and receive theirs; see `count_from`.
    Outcome begin_step(uint32_t number, Deadline deadline) {
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);  // who is alone never waits, and sees it here
        now_ = next_step();
        ++turn_;
        CM_EXCHANGE_POINT("announce");
        for_each(members_, [&](uint32_t rank) { post(rank, number); });
        return await(members_, deadline);
    }

    // Sleep until a peer has begun the next step, or `wanted()`, which is checked whenever the bell rings.
    // Returns kLate if the deadline came first.
    template <class Wanted>
    Outcome await_step(Deadline deadline, Wanted&& wanted) {
        auto seen = [&] { return begun() || wanted() || epoch_raised() || lost() != 0; };
        for (Deadline now = Clock::now(); !seen(); now = Clock::now()) {
            if (now >= deadline) return outcome(Ending::kLate, self_);
            const std::chrono::nanoseconds left = deadline - now;
            doze_at(own().bell(), std::min(left, patience_.doze).count(), seen);
            note_deaths();
        }
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);
        if (const RankSet dead = lost()) return outcome(Ending::kPeerLost, first_of(dead));
        return {};
    }

    // Whether a peer has begun the next step.
    bool begun() const {
        const Announcement next = next_step();
        for (RankSet left = members_ & ~just(self_); left; left &= left - 1) {
            const Announcement said =
                unpack(own().word((turn_ + 1) & 1, first_of(left)).load(std::memory_order_seq_cst));
            if (same_epoch(said, next) && rounds_ahead(said, next) == 0) return true;
        }
        return false;
    }

    // The next round of the step, at most 1,023. Every member calls it, even without a part in the round.
    void begin_round() {
        ++now_.round;
        ++turn_;
    }

    // Announce that the payload for this rank is complete.
    void post(uint32_t to, uint32_t count) {
        if (to == self_) {
            counts_[to] = count;
            return;
        }
        CM_EXCHANGE_POINT("signal");
        Announcement said = now_;
        said.count = count;
        windows_[to].word(turn_ & 1, self_).store(pack(said), std::memory_order_seq_cst);
        ring_as(windows_[to].bell(), self_);
    }

    // Wait until all of these have announced the current round.
    Outcome await(RankSet from, Deadline deadline) {
        CM_EXCHANGE_POINT("wait");
        RankSet open = from & ~just(self_);
        Outcome wrong;
        auto seen = [&] { return take(open, wrong) || epoch_raised() || lost() != 0; };
        auto died = [&] {
            awaited_.note(first_of(open));
            return note_deaths();
        };
        bool in_time = seen();
        if (!in_time) {
            const Clock::time_point begun = Clock::now();
            in_time = wait_at(own().bell(), patience_, deadline, open, seen, died);
            waited_.add(open ? first_of(open) : latest_, Clock::now() - begun);
        }
        awaited_.end();
        if (open == 0 || !wrong) return wrong;
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);
        if (const RankSet dead = lost()) return outcome(Ending::kPeerLost, first_of(dead));
        // In time, but without a word: the shell has withdrawn the lost rank, which it does before raising the epoch.
        return outcome(in_time ? Ending::kEpochChanged : Ending::kLate, first_of(open));
    }

    template <class Body>
    static void for_each(RankSet set, Body&& body) {
        for (; set; set &= set - 1) body(first_of(set));
    }

    const Awaited& awaited() const { return awaited_; }
    const Waited& waited() const { return waited_; }

    Outcome mismatch(uint32_t rank) const { return outcome(Ending::kMismatch, rank); }

  private:
    static uint32_t first_of(RankSet set) { return static_cast<uint32_t>(__builtin_ctzll(set)); }
    Announcement next_step() const {
        return {now_.epoch, (now_.step + 1) & static_cast<uint32_t>(low_bits(kStepBits)), 0, 0};
    }
    bool possible(const Announcement& said) const {
        return said.round == 0 || said.count == kNoMore || said.count <= shape().max_entries();
    }
    const Window& own() const { return windows_[self_]; }
    Outcome outcome(Ending ending, uint32_t rank) const { return {ending, rank, now_.step, now_.round}; }

    bool epoch_raised() const { return own().membership().epoch.load(std::memory_order_seq_cst) != epoch_; }
    RankSet lost() const { return (own().membership().lost.load(std::memory_order_seq_cst) | dead_) & members_; }
    bool note_deaths() {
        dead_ |= watch_.dead();
        return lost() != 0;
    }

    // Remove ranks with a present word from `open`. True if none is left, or a word is invalid.
    bool take(RankSet& open, Outcome& wrong) {
        for (RankSet left = open; left; left &= left - 1) {
            const uint32_t rank = first_of(left);
            const Announcement said = unpack(own().word(turn_ & 1, rank).load(std::memory_order_seq_cst));
            if (!same_epoch(said, now_)) continue;
            const int32_t ahead = rounds_ahead(said, now_);
            if (ahead < 0) continue;
            if (ahead > 0 || !possible(said)) {
                wrong = mismatch(rank);
                return true;
            }
            counts_[rank] = said.count;
            open &= ~just(rank);
            latest_ = rank;
        }
        return open == 0;
    }

    uint32_t self_;
    std::vector<Window> windows_;
    Watch& watch_;
    Patience patience_;
    uint64_t epoch_ = 0;
    RankSet members_ = 0;
    RankSet dead_ = 0;  // detected by this rank in this epoch
    Announcement now_{};
    Awaited awaited_;
    Waited waited_;
    uint32_t latest_ = 0;  // rank whose word was accepted last
    uint32_t turn_ = 0;  // rounds since the epoch's start: successive ones use different columns of words
    std::array<uint32_t, kMostRanks> counts_{};
};

}  // namespace cm::ub
