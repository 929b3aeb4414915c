#include "round.h"

#include <algorithm>

#include "group.h"

namespace cm {
namespace {

// Bounds the wait for peers that compute: they come soon unless they are stopped, or have a long prompt. Of 1, 4 and 16,
// measured with two ranks, the last is as fast as any on free cores and the fastest (by a tenth) on shared ones.
constexpr int kGatherPasses = 16;

// The same at a rank without attention, whose threads have all cores when its peers wait. Tried with two peers on two
// cores: with one thread 0, 1, 4, 8 and 16 with 10 M parameters, 0, 1 and 16 with 372 M; with two threads 1 and 8. With
// this value the last runs had 0.978 (10 M) and 0.849 (372 M) of the rate of colocated ranks; without a wait 0.87, 0.79.
constexpr int kIdleGatherPasses = 1;

bool alike(const cm_linear& a, const cm_linear& b) {
    return a.in_features == b.in_features && (a.form == CM_INT8) == (b.form == CM_INT8);
}

}  // namespace

bool has_failed(const Group& group) { return group.failed(); }
int micro_batches(const Group& group) { return group.micro_batches(); }
void cut_into(Group& group, int count) { group.cut_into(count); }
const uint8_t* masked_experts(const Group& group, const cm_block* block) { return group.masked(block); }

Round::Round(Group& group, int half, int first) : group_(group), half_(static_cast<uint32_t>(half)), first_(first) {}

char* Round::stage(int row) const {
    CM_EXCHANGE_POINT("stage");
    return group_.exchange_.window(group_.exchange_.self()).row(static_cast<uint32_t>(first_ + row));
}

const char* Round::result(int row, int choice) const {
    CM_EXCHANGE_POINT("sum");
    const ub::Window& own = group_.exchange_.window(group_.exchange_.self());
    return own.result<char>(static_cast<uint32_t>(first_ + row), static_cast<uint32_t>(choice));
}

void Round::ask(const cm_block* block, const int32_t* chosen, int rows, int64_t row_bytes) {
    const int layer = group_.layer_of(block), top_k = group_.model_.top_k;
    const size_t experts = static_cast<size_t>(group_.model_.experts);
    const uint32_t* homes = group_.used_.homes.data() + static_cast<size_t>(layer) * CM_MAP_POSITIONS * experts;
    std::atomic<uint64_t>* counts = group_.counts_.data() + static_cast<size_t>(layer) * experts;
    ub::Dispatch& dispatch = group_.dispatch_[half_].emplace(group_.exchange_, half_);
    for (int row = first_; row < first_ + rows; ++row) {
        for (int choice = 0; choice < top_k; ++choice) {
            const int expert = *chosen++;
            const uint32_t home =
                homes[static_cast<size_t>(row % CM_MAP_POSITIONS) * experts + static_cast<size_t>(expert)];
            dispatch.send(home >> 16, static_cast<uint32_t>(row), static_cast<uint32_t>(choice),
                                   home & 0xffff);
            counts[expert].store(counts[expert].load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        }
    }
    if (group_.place_.shared) group_.send_shared(dispatch, layer, first_, rows);
    group_.count_bytes(dispatch, row_bytes);
    group_.ends_rounds_[half_] = group_.is_last(layer);
    const ub::Clock::time_point now = ub::Clock::now();
    group_.answers_by_[half_] = now + group_.deadline_;
    dispatch.ask(now);
}

bool Round::answered() const { return group_.exchange_.answered(half_); }

bool Round::await() { return group_.note(group_.exchange_.await(group_.answers_by_[half_], half_)); }

void Round::end() {
    group_.exchange_.count_round(half_);
    if (group_.ends_rounds_[half_] && half_ + 1 == group_.halves_) return group_.end_rounds();
    group_.exchange_.end_round();
}

void Round::gather() {
    group_.exchange_.gather((group_.asks() ? kGatherPasses : kIdleGatherPasses) * group_.pass_);
}

bool Round::take() {
    group_.service_.emplace(group_.exchange_);
    return group_.note(group_.service_->check()) && group_.note(group_.count_rows());
}

// Rows are put into pieces in order of slots, and within a slot in order of ranks. A piece ends where networks differ: the
// draft layer's may be INT8, and shared experts wider.
bool Round::next_piece(Piece& piece) {
    Group& g = group_;
    if (g.taken_ == 0) g.work_begun_ = ub::Clock::now();
    const int64_t first = g.taken_;
    int64_t end = std::min(first + static_cast<int64_t>(g.received_.size()), g.total_);
    if (first == end) return false;
    CM_EXCHANGE_POINT("gather");
    g.jobs_.clear();
    int64_t begin = 0;
    for (const uint32_t slot : g.used_slots_) {  // from here on slot_rows_ is the index of the slot's next row
        const int64_t until = begin + g.slot_rows_[slot];
        const bool differs = !g.jobs_.empty() && !alike(down(g.jobs_[0].expert), down(static_cast<int>(slot)));
        if (differs && begin < end) end = begin;
        for (int64_t at = std::max(begin, first), to = std::min(until, end); at < to; at += kFeedRows) {
            const auto rows = static_cast<int32_t>(std::min<int64_t>(kFeedRows, to - at));
            g.jobs_.push_back({static_cast<int32_t>(slot), static_cast<int32_t>(at - first), rows});
        }
        g.slot_rows_[slot] = static_cast<int32_t>(begin);
        begin = until;
    }
    g.each_entry([&](ub::Service::Source source, const ub::Entry& entry) {
        const int64_t at = g.slot_rows_[g.index_of(entry)]++;
        if (at < first || at >= end) return;
        g.received_[static_cast<size_t>(at - first)] = {g.service_->row(source, entry),
                                                        g.service_->result<char>(source, entry)};
    });
    begin = 0;
    for (const uint32_t slot : g.used_slots_) {  // and from here on their number again
        const int64_t until = g.slot_rows_[slot];
        g.slot_rows_[slot] = static_cast<int32_t>(until - begin);
        begin = until;
    }
    g.taken_ = end;
    piece = {g.jobs_.data(), static_cast<int>(g.jobs_.size()), g.received_.data(), static_cast<int>(end - first)};
    return true;
}

void Round::answer() {
    CM_EXCHANGE_POINT("written");
    group_.service_->answer(group_.count_work());
}

bool Round::sends_shared() const { return group_.place_.shared; }

bool Round::is_shared(int slot) const { return slot >= group_.place_.slots; }

const cm_linear& Round::gate_up(int slot) const {
    const cm_group_place& place = group_.place_;
    return is_shared(slot) ? place.shared_gate_up[slot - place.slots] : place.gate_up[slot];
}

const cm_linear& Round::down(int slot) const {
    const cm_group_place& place = group_.place_;
    return is_shared(slot) ? place.shared_down[slot - place.slots] : place.down[slot];
}

}  // namespace cm
