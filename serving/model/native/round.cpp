#include "round.h"

#include <algorithm>

#include "group.h"

namespace cm {
namespace {

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

void Round::gather() { group_.gather(); }

bool Round::take(bool large) {
    Group& g = group_;
    ServiceState& state = large ? g.large_ : g.small_;
    if (!state.service) {
        state.service.emplace(g.exchange_, large ? ub::kAnyCount : g.few());
        state.taken = ub::Clock::now();
        if (!g.note(state.service->check()) || !g.note(g.count_rows(state))) return false;
    }
    state_ = &state;
    g.until_ = large ? g.piece_end() : state.total;
    g.work_begun_ = ub::Clock::now();
    return true;
}

// Rows are put into pieces in order of slots, and within a slot in order of ranks. A piece ends where networks differ: the
// draft layer's may be INT8, and shared experts wider. A slot that was emptied after a part of a service was of ranks that
// are gone.
bool Round::next_piece(Piece& piece) {
    Group& g = group_;
    ServiceState& state = *state_;
    const int64_t first = state.done;
    int64_t end = std::min(first + static_cast<int64_t>(g.received_.size()), g.until_);
    if (first == end) return false;
    CM_EXCHANGE_POINT("gather");
    g.jobs_.clear();
    int64_t begin = 0;
    for (const uint32_t slot : state.used_slots) {  // from here on slot_rows is the index of the slot's next row
        const int64_t until = begin + state.slot_rows[slot];
        const bool differs = !g.jobs_.empty() && !alike(down(g.jobs_[0].expert), down(static_cast<int>(slot)));
        if (differs && begin < end) end = begin;
        for (int64_t at = std::max(begin, first), to = std::min(until, end); at < to; at += kFeedRows) {
            const auto rows = static_cast<int32_t>(std::min<int64_t>(kFeedRows, to - at));
            if (g.is_filled(slot)) g.jobs_.push_back({static_cast<int32_t>(slot), static_cast<int32_t>(at - first), rows});
        }
        state.slot_rows[slot] = static_cast<int32_t>(begin);
        begin = until;
    }
    g.each_entry(*state.service, [&](ub::Service::Source source, const ub::Entry& entry) {
        const int64_t at = state.slot_rows[g.index_of(entry)]++;
        if (at < first || at >= end) return;
        g.received_[static_cast<size_t>(at - first)] = {state.service->row(source, entry),
                                                        state.service->result<char>(source, entry)};
    });
    begin = 0;
    for (const uint32_t slot : state.used_slots) {  // and from here on their number again
        const int64_t until = state.slot_rows[slot];
        state.slot_rows[slot] = static_cast<int32_t>(until - begin);
        begin = until;
    }
    state.done = end;
    piece = {g.jobs_.data(), static_cast<int>(g.jobs_.size()), g.received_.data(), static_cast<int>(end - first)};
    return true;
}

void Round::answer() {
    CM_EXCHANGE_POINT("written");
    const ub::ServiceTimes times = group_.count_work(*state_);
    const bool whole = state_->done == state_->total;
    if (whole) {
        state_->service->answer(times);
        state_->service.reset();
    }
    group_.exchange_.keep_serving(group_.large_.service.has_value());
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
