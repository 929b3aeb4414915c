// A rank's side of a group: the exchange with its peers, the destination of every expert's rows, the content of its own
// slots.
//
// Every step of the engine is a step of the group. It begins with an announcement from all to all; a rank without rows,
// or done early, serves its experts until all are done. A step that a peer's death interrupts is repeated in the next
// epoch: with the same batch, and so with the same rows of the cache and the same tokens.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "hardware/ub/native/combine.h"
#include "hardware/ub/native/dispatch.h"
#include "interface.h"
#include "round.h"

namespace cm {

// Location of the experts of all layers; all ranks use the same map in the same step.
struct ExpertMap {
    uint64_t version = 0;
    uint64_t epoch = 0;  // earliest epoch of use
    std::vector<uint32_t> homes;  // [layers][CM_MAP_POSITIONS][experts]
    ub::RankSet ranks = 0;  // ranks that hold them
};

// A replacement process for a rank.
struct Peer {
    uint32_t rank;
    ub::Window window;
    int32_t process;
};

// 0, or CM_BAD_ARGUMENT if a map refers to a slot without an expert. homes: [layers][CM_MAP_POSITIONS][experts].
int32_t check_map(const cm_group_place& place, const ub::WindowShape& shape, int layers, int experts, uint64_t version,
                  const uint32_t* homes);

class Group {
  public:
    // windows: opened, by rank. Throws std::bad_alloc.
    Group(const cm_group_place& place, const cm_model& model, std::vector<ub::Window> windows);

    const ub::Awaited& awaited() const { return exchange_.awaited(); }
    const ub::WindowShape& shape() const { return exchange_.shape(); }
    // False if the kernel cannot watch a peer's process.
    bool watch(const int32_t* processes);

    // Begin a step. After a failure of this or of a wait in the step, the rest of the step is void.
    bool begin();
    bool failed() const { return !failure_; }
    const ub::Outcome& failure() const { return failure_; }
    // Adopt the next epoch, after waiting for it. False if there is none in time, or without this rank.
    bool recover();

    // Sleep until there is a step to serve, this rank was woken for other work, or the deadline. True in the first
    // case: a peer has begun it, or it is to be begun here, so that an idle group adopts a new map.
    bool await_step(ub::Deadline deadline);
    void wake();
    // Whether this rank was woken for other work since the last call.
    bool wanted() { return wanted_.exchange(false); }

    int32_t set_map(uint64_t version, const uint32_t* homes, uint64_t epoch);
    int32_t set_peer(uint32_t rank, const ub::Window& window, int32_t process);
    uint64_t map_version() const { return used_version_.load(); }
    uint64_t epoch() const { return epoch_.load(); }
    void counts(uint64_t* to) const;
    // See cm_group_usage.
    int64_t usage(uint64_t* per_peer) const;
    // See cm_group_work.
    void work(int64_t* to) const;
    // Record the end of a group step that began at this time.
    void count_time(ub::Clock::time_point begun);

  private:
    friend class Round;

    uint64_t newest_map();
    bool use_map(uint64_t common);
    ub::Outcome check_homes() const;
    void wait_as_members();  // with the patience for this many ranks on these cores
    ub::Deadline deadline() const { return ub::Clock::now() + deadline_; }
    bool note(const ub::Outcome& outcome);
    int layer_of(const cm_block* block) const;  // its number among those with routed experts
    bool holds(uint32_t slot) const {
        return slot < static_cast<uint32_t>(place_.slots) && place_.gate_up[slot].out_features > 0;
    }
    // use(source, entry) for all incoming entries.
    template <class Use>
    void each_entry(Use&& use) const {
        ub::Exchange::for_each(dispatch_->sources(), [&](uint32_t source) {
            const ub::Entry* entries = dispatch_->entries(source);
            for (uint32_t i = 0, count = dispatch_->count(source); i < count; ++i) use(source, entries[i]);
        });
    }
    ub::Outcome count_rows();
    void count_bytes(int64_t row_bytes);
    void count_work();

    cm_group_place place_;
    const cm_model& model_;
    std::vector<int> layer_of_block_;  // [layers of the model]
    std::chrono::nanoseconds deadline_;
    ub::Watch watch_;
    ub::Exchange exchange_;
    ub::Outcome failure_;
    std::atomic<bool> wanted_{false};
    std::atomic<bool> new_map_{false};  // one that no step has announced yet
    ExpertMap used_;
    std::atomic<uint64_t> used_version_;
    std::atomic<uint64_t> epoch_;
    std::mutex lock_;  // protects the changes for the next epoch or step
    std::vector<ExpertMap> pending_;  // by version: the version that all have may be older than this rank's
    std::vector<Peer> newcomers_;
    std::vector<std::atomic<uint64_t>> counts_;  // [layers][experts]
    std::array<std::atomic<uint64_t>, ub::kMostRanks> row_bytes_{}, result_bytes_{};  // to and from each peer
    std::atomic<int64_t> step_ns_{0};
    std::atomic<int64_t> work_ns_{0}, work_rows_{0}, work_nets_{0};  // of the experts here, for rows of any rank

    // The current round.
    std::optional<ub::Dispatch> dispatch_;
    std::optional<ub::Combine> combine_;
    std::vector<int32_t> slot_rows_;    // [slots] incoming rows of each
    std::vector<uint32_t> used_slots_;  // those with rows, ascending
    int64_t total_ = 0, taken_ = 0;     // incoming rows, and those already in pieces
    ub::Clock::time_point work_begun_;
    std::vector<Received> received_;    // of one piece
    std::vector<ExpertJob> jobs_;
};

}  // namespace cm
