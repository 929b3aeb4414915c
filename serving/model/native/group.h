// A rank's side of a group: the exchange with its peers, the destination of every expert's rows, the content of its own
// slots.
//
// A step of the engine asks the peers that hold its rows' experts, layer by layer; while it waits for them, it serves
// theirs. A rank without a step, or without attention, serves whoever asks. A step that a peer's death interrupts is redone in the next epoch: the
// same batch, hence the same rows of the cache and the same tokens.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "hardware/ub/native/dispatch.h"
#include "hardware/ub/native/service.h"
#include "interface.h"
#include "round.h"

namespace cm {

// Where the experts of all layers are. Ranks may use different ones meanwhile: no slot that one of them names is filled
// anew.
struct ExpertMap {
    uint64_t version = 0;
    uint64_t epoch = 0;  // earliest epoch of use
    std::vector<uint32_t> homes;  // [layers][CM_MAP_POSITIONS][experts]
    ub::RankSet ranks = 0;  // ranks that hold them
    int masked = 0;         // experts of all layers that no rank holds
    std::vector<uint8_t> closed;  // [layers][experts] 1 = masked; empty if none is
};

// A replacement process for a rank.
struct Peer {
    uint32_t rank;
    ub::Window window;
    int32_t process;
};

// A rank that only asks has joined, or left, within an epoch.
struct SourceChange {
    uint32_t rank;
    std::optional<ub::Window> window;  // none: it has left
};

constexpr uint32_t kSharedSlot = 0xffff;  // of the first layer's shared experts in entries

// 0, or CM_BAD_ARGUMENT if a map refers to a slot without an expert, or leaves too few experts of a layer to choose from.
// place: with as many ranks as windows have room for; homes: [layers][CM_MAP_POSITIONS][experts].
int32_t check_map(const cm_group_place& place, const cm_model& model, uint64_t version, const uint32_t* homes);

// Of one kind of sessions, which are served together: those with few rows, or those with many.
struct ServiceState {
    std::optional<ub::Service> service;  // none between two services
    ub::Clock::time_point taken;         // when it began
    std::vector<int32_t> slot_rows;      // [slots, and layers with shared experts] rows that came for each
    std::vector<uint32_t> used_slots;    // those with rows, ascending
    int64_t total = 0, done = 0;         // incoming rows, and those already in pieces
    std::chrono::nanoseconds spent{0};   // so far
    std::chrono::nanoseconds pass{0};    // what the service before took
    double row_ns = 0.0;                 // time of a row, in the pieces of this service or the one before
};

class Group {
  public:
    // windows: opened, by rank. Throws std::bad_alloc.
    // max_rows: computed at once, times the experts of a row.
    Group(const cm_group_place& place, const cm_model& model, int max_rows, std::vector<ub::Window> windows);

    const ub::Awaited& awaited() const { return exchange_.awaited(); }
    const ub::WindowShape& shape() const { return exchange_.shape(); }
    bool asks() const { return ub::asks(exchange_.role()); }
    // False if the kernel cannot watch a peer's process.
    bool watch(const int32_t* processes);

    // Begin a step. After a failure of this or of a wait in the step, the rest of the step is void.
    bool begin();
    bool failed() const { return !failure_; }
    const ub::Outcome& failure() const { return failure_; }
    // Adopt the next epoch, after waiting for it. False if there is none in time, or without this rank.
    bool recover();

    // Micro-batches of further steps: 1 or 2.
    void use_micro_batches(int count) { micro_batches_ = count; }
    int micro_batches() const { return micro_batches_; }
    void cut_into(int count) { halves_ = static_cast<uint32_t>(count); }

    void end_rounds() { exchange_.end_rounds(few()); }  // of the step, whether it has failed or not
    // After the own step: as `await_ask` while a peer is at the rounds of its step, if it was when this rank's ended. Ranks
    // whose steps end together plan the next ones together, and not by turns while the others wait.
    bool await_slower_peers(ub::Deadline deadline);

    // Sleep until somebody asks, a new map comes, this rank is wanted elsewhere, or the deadline. True in the first case.
    bool await_ask(ub::Deadline deadline);
    // Wait for those who are about to ask, see `gather_ns` of cm_group_place. Without attention call it while the engine's
    // threads sleep: peers need the cores.
    void gather() {
        if (place_.gather_ns != 0 && !large_.service) exchange_.gather(gathering());
    }
    // Use the newest map. False if it names a rank that is no member.
    bool take_map();
    // Admit and drop ranks that only ask, as said meanwhile.
    void take_sources();
    void wake();
    // Whether this rank was woken for other work since the last call.
    bool wanted() { return wanted_.exchange(false); }

    int32_t set_map(uint64_t version, const uint32_t* homes, uint64_t epoch);
    int32_t set_peer(uint32_t rank, const ub::Window& window, int32_t process);
    void change_source(const SourceChange& change);
    bool settled();
    // Of the oldest map that a member uses.
    uint64_t map_version();
    uint64_t epoch() const { return epoch_.load(); }
    // Of a layer under the map of the present step, or the last one; null if it masks no expert.
    const uint8_t* masked(const cm_block* block) const;
    void complete_step();  // it was not interrupted: what an earlier attempt has written is overwritten
    // Most experts, over all layers, that the maps of the completed steps since the last call masked.
    int take_masked() { return std::exchange(masked_, 0); }
    void counts(uint64_t* to) const;
    // See cm_group_usage.
    int64_t usage(uint64_t* per_peer) const;
    // See cm_group_work.
    void work(int64_t* to) const;
    // See cm_group_sessions.
    void sessions(int64_t* to) const { exchange_.parts().read(to); }
    // Record the end of a group step that began at this time.
    void count_time(ub::Clock::time_point begun);

  private:
    friend class Round;

    ub::Outcome check_homes() const;
    void wait_as_members();  // with the patience for this many ranks on these cores
    ub::Deadline deadline() const { return ub::Clock::now() + deadline_; }
    bool note(const ub::Outcome& outcome);
    int layer_of(const cm_block* block) const;  // its number among those with routed experts
    bool is_last(int layer) const {
        const int draft = model_.draft && model_.draft->block.gate.out_features ? 1 : 0;
        return layer >= place_.layers - 1 - draft;
    }
    // Shared experts follow the slots here, a layer each. In entries their numbers count down from the highest one, as
    // other ranks do not know how many slots there are.
    uint32_t index_of(const ub::Entry& entry) const {
        const uint32_t layer = kSharedSlot - entry.slot, slots = static_cast<uint32_t>(place_.slots);
        return place_.shared && layer < static_cast<uint32_t>(place_.layers) ? slots + layer : entry.slot;
    }
    uint32_t network_count() const {
        return static_cast<uint32_t>(place_.slots + (place_.shared_gate_up ? place_.layers : 0));
    }
    bool is_filled(uint32_t index) const {
        if (index >= static_cast<uint32_t>(place_.slots)) return index < network_count();
        return place_.gate_up[index].out_features > 0;
    }
    bool holds(const ub::Entry& entry) const {
        const uint32_t index = index_of(entry);
        const bool shared = index >= static_cast<uint32_t>(place_.slots);
        return is_filled(index) && (shared ? entry.choice == model_.top_k : entry.choice < model_.top_k);
    }
    // Rows of a session are divided evenly into runs, one for each rank with experts.
    void send_shared(ub::Dispatch& dispatch, int layer, int first, int rows) const;
    // use(source, entry) for all incoming entries.
    template <class Use>
    void each_entry(const ub::Service& service, Use&& use) const {
        service.each_source([&](ub::Service::Source source) {
            const ub::Entry* entries = service.entries(source);
            for (uint32_t i = 0, count = service.count(source); i < count; ++i) use(source, entries[i]);
        });
    }
    ub::Outcome count_rows(ServiceState& state);
    uint32_t few() const;  // entries of a small session at most
    ub::Gathering gathering() const;
    // End of the rows of long sessions that are computed before others are looked for.
    int64_t piece_end() const;
    void count_bytes(const ub::Dispatch& dispatch, int64_t row_bytes);
    ub::ServiceTimes count_work(ServiceState& state);

    cm_group_place place_;
    const cm_model& model_;
    std::vector<int> layer_of_block_;  // [layers of the model]
    std::chrono::nanoseconds deadline_;
    ub::Watch watch_;
    ub::Exchange exchange_;
    ub::Outcome failure_;
    std::atomic<bool> wanted_{false};
    std::atomic<bool> new_map_{false};  // one that is not used yet
    ExpertMap used_;
    int masked_ = 0;  // see take_masked
    std::atomic<uint64_t> used_version_;
    std::atomic<uint64_t> epoch_;
    std::mutex lock_;  // of what the next epoch or step takes up
    std::vector<ExpertMap> pending_;  // by version and epoch: those of epochs to come
    std::vector<Peer> newcomers_;
    std::vector<SourceChange> changes_;  // in order
    std::atomic<bool> new_sources_{false};
    std::vector<std::atomic<uint64_t>> counts_;  // [layers][experts]
    std::array<std::atomic<uint64_t>, ub::kMostRanks> row_bytes_{}, result_bytes_{};  // to and from each peer
    std::atomic<int64_t> step_ns_{0};
    std::atomic<int64_t> work_ns_{0}, work_rows_{0}, work_nets_{0};  // of the experts here, for rows of any rank

    std::array<std::optional<ub::Dispatch>, ub::kMicroBatches> dispatch_;  // of the step's present round
    std::array<bool, ub::kMicroBatches> ends_rounds_{};
    int micro_batches_ = 1;
    uint32_t halves_ = 1;  // of the present layers
    std::array<ub::Deadline, ub::kMicroBatches> answers_by_;

    ServiceState small_, large_;
    int64_t until_ = 0;  // end of the present pieces
    ub::Clock::time_point work_begun_;
    std::vector<Received> received_;    // of one piece
    std::vector<ExpertJob> jobs_;
};

}  // namespace cm
