// Sessions between the ranks of one epoch. A rank with rows asks the ranks that have experts for them, and goes on when
// all of these have answered; a rank with experts answers whoever has asked, in any order. There is no word among ranks
// that ask, or among ranks that answer, and no round of all. Payload is the business of dispatch.h and service.h.
// A rank has a session for each micro-batch of its step, `half` 0 and 1, each with words and lists of its own.
//
// In a new epoch a rank with experts says hello to all that may ask it before it answers anybody: from then on it reads
// and writes nothing for an older epoch. So a session may touch what others read or write as soon as all members with
// experts have said it; it asks nobody before. Ranks that only ask may join or leave within an epoch: those with experts
// admit or drop them between two services, and nobody else needs to know.
//
// A rank that waits for answers also looks for asks, and serves them in between: two ranks may need one another.
// A wait takes an answer that is there before it looks whether the epoch was raised or a member died.
// tests/hardware/ub/session_model.py runs these rules through every order of words.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "announcement.h"
#include "asks.h"
#include "awaited.h"
#include "bell.h"
#include "outcome.h"
#include "patience.h"
#include "session.h"
#include "watch.h"
#include "window.h"

#ifndef CM_EXCHANGE_POINT  // tests define it, to die at a given point of the protocol
#define CM_EXCHANGE_POINT(place)
#endif

namespace cm::ub {

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
    RankSet asked_by() const { return sources_; }  // other members that this rank may have to answer
    RankSet answering() const { return experts_; }  // other members that it may ask
    Role role() const { return own().header().role; }
    uint64_t epoch() const { return epoch_; }
    uint32_t step() const { return now_.step; }

    // Take up the epoch that the own window names, and say hello to its members. Steps begin anew.
    void enter() {
        const Membership& named = own().membership();
        do {  // a shell may be raising the next one: its members differ from this one's
            epoch_ = named.epoch.load(std::memory_order_seq_cst);
            members_ = named.members.load(std::memory_order_acquire);
        } while (named.coming.load(std::memory_order_relaxed) != epoch_);
        sources_ = experts_ = dead_ = 0;
        for_each(members_ & ~just(self_), [this](uint32_t rank) {
            const WindowHeader& there = windows_[rank].header();
            if (there.owner != rank) return;  // not mapped: neither needs the other
            if (answers(there.role) && asks(role())) experts_ |= just(rank);
            if (asks(there.role) && answers(role())) sources_ |= just(rank);
        });
        now_ = {static_cast<uint32_t>(epoch_ % low_bits(kEpochBits) + 1), low_bits(kStepBits), 0, 0};
        greeted_ = unfinished_ = false;
        slower_ = 0;
        own_ = {};
        asks_.begin(pack(now_));
        CM_EXCHANGE_POINT("hello");
        for_each(sources_, [&](uint32_t rank) { post(rank, Kind::kAnswer, 0, pack(now_)); });
    }

    // Admit a rank that only asks to this epoch, or another process in its place; between two services. A dead one's last
    // words must not count as the newcomer's asks.
    void admit(uint32_t rank, const Window& window) {
        drop(rank);
        windows_[rank] = window;
        members_ |= just(rank);
        sources_ |= just(rank);
        const uint64_t hello = pack({now_.epoch, low_bits(kStepBits), 0, 0});
        asks_.begin(hello, rank);
        CM_EXCHANGE_POINT("hello");
        post(rank, Kind::kAnswer, 0, hello);
    }
    // One that only asked has left, or is dead.
    void drop(uint32_t rank) {
        members_ &= ~just(rank);
        sources_ &= ~just(rank);
        for (uint32_t half = 0; half < kMicroBatches; ++half)
            own().word(Kind::kAsk, rank, half).store(0, std::memory_order_seq_cst);
    }

    // Takes effect with the next wait.
    void wait_with(const Patience& patience) { patience_ = patience; }

    // Put another window in the place of a rank that is no member; before the `enter` that makes it one.
    void replace(uint32_t rank, const Window& window) { windows_[rank] = window; }

    // Wait until the shell has raised the epoch, to be taken up by `enter`.
    Outcome await_epoch(Deadline deadline) {
        auto raised = [this] { return epoch_raised(); };
        auto nothing = [] { return false; };
        const bool in_time = wait_at(own().bell(), patience_, deadline, {just(self_), 0, false}, raised, nothing);
        return in_time ? Outcome{} : outcome(Ending::kLate, self_);
    }

    // ---- the rank's own session

    // Begin the next step. The first of an epoch waits for all members with experts.
    Outcome begin_step(Deadline deadline) {
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);  // who is alone never waits, and sees it here
        if (!greeted_) {
            own_[0].open = experts_;
            if (const Outcome heard = await_answers(0, deadline, false); !heard) return heard;
            greeted_ = true;
        }
        now_ = {now_.epoch, (now_.step + 1) & static_cast<uint32_t>(low_bits(kStepBits)), 0, 0};
        for (Session& own : own_) own.round = 0;
        show(Phase::kComputing);
        return {};
    }

    // The results of a round are there, and are added now.
    void count_round(uint32_t half) { parts_.add(own_[half], Clock::now()); }
    void end_round() { show(Phase::kComputing); }  // the next asks of this step come soon

    // The same, but no more asks come in this step, or not soon: nobody waits for them. few: see `Gathering`.
    void end_rounds(uint32_t few = kAnyCount) {
        show(Phase::kAway);
        slower_ = 0;
        for_each(sources_ & experts_, [&](uint32_t rank) {
            steps_[rank] = progress_of(rank).step();
            const bool alike = (asks_.count(rank) <= few) == (own_[0].sent[rank] <= few);
            if (alike && progress_of(rank).shown() != Phase::kAway) slower_ |= just(rank);
            ring_as(windows_[rank].bell(), Kind::kAsk, self_);
        });
    }

    // Whether a member still is at the rounds of the step in which it was when this rank's ended.
    bool has_slower_peers() {
        for_each(slower_, [&](uint32_t rank) {
            if (progress_of(rank).shown() == Phase::kAway || progress_of(rank).step() != steps_[rank]) slower_ &= ~just(rank);
        });
        return slower_ != 0;
    }

    // Tell all which version of the map of experts this rank uses from now on, between two steps.
    void use_map(uint64_t version) { own().progress().map.store(version, std::memory_order_release); }
    // The oldest that this rank uses, or one that it asks or answers: no ask follows an older one.
    uint64_t oldest_map() const {
        uint64_t oldest = ~uint64_t{0};
        for_each(sources_ | experts_ | just(self_), [&](uint32_t rank) {
            oldest = std::min(oldest, windows_[rank].progress().map.load(std::memory_order_acquire));
        });
        return oldest;
    }

    // The next round of the step, at most 1,023: ask the ranks that have entries of this rank's lists, by rank.
    void ask(const std::array<uint32_t, kMostRanks>& counts, uint32_t half = 0, Clock::time_point now = Clock::now()) {
        Session& own = own_[half];
        own.begin_round(now);
        own.open = 0;
        own.count = counts[self_];
        own.taken = false;
        for_each(experts_, [&](uint32_t rank) {
            own.sent[rank] = counts[rank];
            if (counts[rank] == 0) return;
            own.open |= just(rank);
            CM_EXCHANGE_POINT("ask");
            post(rank, Kind::kAsk, half, word_to(rank, half));
        });
        show(Phase::kWaiting);
    }

    // Whether the results of all rows are there.
    bool answered(uint32_t half = 0) const { return own_[half].open == 0 && own_[half].count == 0; }

    // Wait until they are, or somebody asks.
    Outcome await(Deadline deadline, uint32_t half = 0) { return await_answers(half, deadline, true); }

    // ---- the rank's part as one with experts

    // Wait for asks that come soon, so that more rows share the reading of an expert's weights. Small sessions wait for
    // small ones only, others for others. With attention: for members that compute at the moment, and whose answers
    // this rank needs, too. Without: for those whose next ask is of the same round, hence of the same layer, as one that
    // is there; before the first round also for those between two steps, or ranks a layer apart would stay so.
    void gather(const Gathering& how) {
        const bool small = asked(how.few) || !asked(kAnyCount);
        Wanted open;
        auto seen = [&] {
            open.asks = expected(how, small);
            return open.asks == 0 || epoch_raised() || lost() != 0;
        };
        if (seen()) return;
        const uint32_t first = first_of(open.asks);
        const Clock::time_point begun = Clock::now();
        const bool between = progress_of(first).shown() == Phase::kAway;
        const Deadline until = between ? std::min(begun + how.between_steps, asks_.due(first)) : begun + how.most;
        wait_at(own().bell(), patience_, until, open, seen, [] { return false; });
        waited_.add(first, Clock::now() - begun);
    }

    // Take the asks of at most so many entries: they are answered together, by `answer`.
    Sessions take(uint32_t most = kAnyCount) {
        Sessions found{};
        const Clock::time_point now = Clock::now();
        for (uint32_t half = 0; half < kMicroBatches; ++half) {
            if (own_asks(half, most)) {
                own_[half].taken = true;
                found[half] = just(self_);
            }
            for_each(sources_, [&](uint32_t rank) {
                if (asks_.take(own(), rank, half, most, now)) found[half] |= just(rank);
            });
        }
        return found;
    }
    // Entries of one who was taken; more than there can be if it does not run the same protocol.
    uint32_t count_from(uint32_t rank, uint32_t half) const {
        return rank == self_ ? own_[half].count : asks_.count(rank, half);
    }

    // Say to those who were taken that their results are whole, and when that was.
    void answer(const Sessions& taken, const ServiceTimes& times = {}) {
        const Clock::time_point now = Clock::now();
        for (uint32_t half = 0; half < kMicroBatches; ++half) {
            if (has(taken[half], self_)) own_[half].serve(times);
            for_each(taken[half] & ~just(self_), [&](uint32_t rank) {
                CM_EXCHANGE_POINT("answer");
                asks_.on_answer(rank, now);
                stamp(windows_[rank].line(Kind::kAnswer, self_, half), times);
                post(rank, Kind::kAnswer, half, asks_.last(rank, half));
            });
        }
    }

    // Whether a service of sessions that were taken is to be continued: meanwhile nobody sleeps until the next ask.
    void keep_serving(bool unfinished) { unfinished_ = unfinished; }

    // Sleep until somebody asks, or `wanted()`, which is looked at whenever the bell rings. Late if the deadline came
    // first. Here nobody is waited for: the dead are the shell's business.
    template <class Wants>
    Outcome await_ask(Deadline deadline, Wants&& wants) {
        auto seen = [&] { return asked() || wants() || epoch_raised(); };
        auto nothing = [] { return false; };
        Patience patience = patience_;
        patience.slice = patience.doze;
        const bool in_time = wait_at(own().bell(), patience, deadline, {0, 0, true}, seen, nothing);
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);
        return in_time ? Outcome{} : outcome(Ending::kLate, self_);
    }

    // Whether somebody has asked, for at most so many entries, and was not taken yet; or a service is unfinished.
    bool asked() const { return unfinished_ || asked(kAnyCount); }
    bool asked(uint32_t most) const {
        if (own_asks(0, most) || own_asks(1, most)) return true;
        for (RankSet left = sources_; left; left &= left - 1)
            if (asks_.rounds(own(), first_of(left), most) != 0) return true;
        return false;
    }

    template <class Body>
    static void for_each(RankSet set, Body&& body) {
        for (; set; set &= set - 1) body(first_of(set));
    }

    const Awaited& awaited() const { return awaited_; }
    const Waited& waited() const { return waited_; }
    const SessionParts& parts() const { return parts_; }

    Outcome mismatch(uint32_t rank) const { return outcome(Ending::kMismatch, rank); }

  private:
    static uint32_t first_of(RankSet set) { return static_cast<uint32_t>(__builtin_ctzll(set)); }

    const Window& own() const { return windows_[self_]; }
    Outcome outcome(Ending ending, uint32_t rank) const {
        return {ending, rank, now_.step, std::max(own_[0].round, own_[1].round)};
    }
    uint64_t word_to(uint32_t rank, uint32_t half) const {
        return pack({now_.epoch, now_.step, own_[half].round, own_[half].sent[rank]});
    }

    // The bell knows ranks only: a word of the other session may wake its sleeper early, which then sleeps again.
    void post(uint32_t to, Kind kind, uint32_t half, uint64_t word) {
        windows_[to].word(kind, self_, half).store(word, std::memory_order_seq_cst);
        ring_as(windows_[to].bell(), kind, self_);
    }

    bool epoch_raised() const { return own().membership().epoch.load(std::memory_order_seq_cst) != epoch_; }
    RankSet lost() const { return (own().membership().lost.load(std::memory_order_seq_cst) | dead_) & experts_; }
    bool note_deaths() {
        dead_ |= watch_.dead();
        return lost() != 0;
    }

    void show(Phase phase) {
        own().progress().phase.store(uint64_t{now_.step} << 2 | static_cast<uint64_t>(phase), std::memory_order_seq_cst);
    }
    const Progress& progress_of(uint32_t rank) const { return windows_[rank].progress(); }
    bool own_asks(uint32_t half, uint32_t most) const {
        return own_[half].count && own_[half].count <= most && !own_[half].taken;
    }
    // Members that will ask soon, see `gather`.
    RankSet expected(const Gathering& how, bool small) const {
        const bool colocated = asks(role());
        uint64_t rounds = 0;
        for_each(sources_, [&](uint32_t rank) { rounds |= asks_.rounds(own(), rank, small ? how.few : kAnyCount); });
        RankSet found = 0;
        for_each(colocated ? (own_[0].open | own_[1].open) & sources_ : sources_, [&](uint32_t rank) {
            if ((asks_.count(rank) <= how.few) != small || asks_.rounds(own(), rank)) return;
            const Progress& there = progress_of(rank);
            const bool soon = colocated ? there.shown() == Phase::kComputing : asks_.joins_soon(there, rank, rounds, Clock::now());
            if (soon) found |= just(rank);
        });
        return found;
    }

    Outcome await_answers(uint32_t half, Deadline deadline, bool or_asks) {
        CM_EXCHANGE_POINT("wait");
        Outcome wrong;
        RankSet& left = own_[half].open;
        Wanted open{left, 0, or_asks};
        auto seen = [&] {
            const bool all = take_answers(half, wrong);
            open.answers = left;
            return all || (or_asks && asked()) || epoch_raised() || lost() != 0;
        };
        auto died = [&] {
            awaited_.note(first_of(left));
            return note_deaths();
        };
        bool in_time = seen();
        if (!in_time) {
            const Clock::time_point begun = Clock::now();
            in_time = wait_at(own().bell(), patience_, deadline, open, seen, died);
            waited_.add(left ? first_of(left) : latest_, Clock::now() - begun);
        }
        const bool going = in_time && wrong && left != 0 && !epoch_raised() && lost() == 0;
        if (going && or_asks && asked()) return {};  // and is still waited for
        awaited_.end();
        if (left == 0 || !wrong) return wrong;
        if (epoch_raised()) return outcome(Ending::kEpochChanged, self_);
        if (const RankSet dead = lost()) return outcome(Ending::kPeerLost, first_of(dead));
        // In time, and yet nothing to see: the shell took back who is lost, which it does to raise the epoch.
        return outcome(in_time ? Ending::kEpochChanged : Ending::kLate, first_of(left));
    }

    // Take the answers that are there out of `open`. True if none is left, or one is wrong.
    bool take_answers(uint32_t half, Outcome& wrong) {
        RankSet& open = own_[half].open;
        for (RankSet left = open; left; left &= left - 1) {
            const uint32_t rank = first_of(left);
            const Word& line = own().line(Kind::kAnswer, rank, half);
            const uint64_t word = line.value.load(std::memory_order_seq_cst);
            if (word == word_to(rank, half)) {
                open &= ~just(rank);
                own_[half].note(stamp_of(line));
                latest_ = rank;
                continue;
            }
            const Announcement said = unpack(word), wanted{now_.epoch, now_.step, own_[half].round, 0};
            if (!same_epoch(said, wanted) || rounds_ahead(said, wanted) < 0) continue;
            wrong = mismatch(rank);
            return true;
        }
        return open == 0;
    }

    uint32_t self_;
    std::vector<Window> windows_;
    Watch& watch_;
    Patience patience_;
    uint64_t epoch_ = 0;
    RankSet members_ = 0;
    RankSet sources_ = 0, experts_ = 0;  // other members that ask this rank, and that it asks
    RankSet dead_ = 0;  // detected by this rank in this epoch
    Announcement now_{};
    bool greeted_ = false;  // all members with experts have said hello
    std::array<Session, kMicroBatches> own_;
    bool unfinished_ = false;  // a service that the rank goes on with later
    Asks asks_;
    RankSet slower_ = 0;                           // members that were at their rounds when this rank's ended
    std::array<uint64_t, kMostRanks> steps_{};     // and their steps
    Awaited awaited_;
    Waited waited_;
    SessionParts parts_;
    uint32_t latest_ = 0;  // rank whose answer was taken last
};

}  // namespace cm::ub
