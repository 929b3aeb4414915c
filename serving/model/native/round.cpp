#include "round.h"

#include <algorithm>

#include "group.h"

namespace cm {
bool has_failed(const Group& group) { return group.failed(); }
int micro_batches(const Group& group) { return group.micro_batches(); }
void cut_into(Group& group, int count) { group.cut_into(count); }

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
    group_.count_bytes(dispatch, row_bytes);
    group_.ends_rounds_[half_] = group_.is_last(layer);
    group_.answers_by_[half_] = group_.deadline();
    dispatch.ask();
}

bool Round::answered() const { return group_.exchange_.answered(half_); }

bool Round::await() { return group_.note(group_.exchange_.await(group_.answers_by_[half_], half_)); }

void Round::end() {
    if (group_.ends_rounds_[half_] && half_ + 1 == group_.halves_) return group_.end_rounds();
    group_.exchange_.end_round();
}

void Round::gather() { group_.gather(); }

bool Round::take(bool large) {
    Group& g = group_;
    Served& served = large ? g.large_ : g.small_;
    if (!served.service) {
        served.service.emplace(g.exchange_, large ? ub::kAnyCount : g.few());
        if (!g.note(served.service->check()) || !g.note(g.count_rows(served))) return false;
    }
    served_ = &served;
    g.until_ = large ? g.piece_end() : served.total;
    g.work_begun_ = ub::Clock::now();
    return true;
}

// Rows are put into pieces in order of slots, and within a slot in order of ranks. A slot that was emptied after a part of
// a service was of ranks that are gone.
bool Round::next_piece(Piece& piece) {
    Group& g = group_;
    Served& served = *served_;
    const int64_t first = served.done, end = std::min(first + static_cast<int64_t>(g.received_.size()), g.until_);
    if (first == end) return false;
    CM_EXCHANGE_POINT("gather");
    g.jobs_.clear();
    int64_t begin = 0;
    for (const uint32_t slot : served.used_slots) {  // from here on slot_rows is the index of the slot's next row
        const int64_t until = begin + served.slot_rows[slot];
        for (int64_t at = std::max(begin, first), to = std::min(until, end); at < to; at += kFeedRows) {
            const auto rows = static_cast<int32_t>(std::min<int64_t>(kFeedRows, to - at));
            if (g.holds(slot)) g.jobs_.push_back({static_cast<int32_t>(slot), static_cast<int32_t>(at - first), rows});
        }
        served.slot_rows[slot] = static_cast<int32_t>(begin);
        begin = until;
    }
    g.each_entry(*served.service, [&](ub::Service::Source source, const ub::Entry& entry) {
        const int64_t at = served.slot_rows[entry.slot]++;
        if (at < first || at >= end) return;
        g.received_[static_cast<size_t>(at - first)] = {served.service->row(source, entry),
                                                        served.service->result<char>(source, entry)};
    });
    begin = 0;
    for (const uint32_t slot : served.used_slots) {  // and from here on their number again
        const int64_t until = served.slot_rows[slot];
        served.slot_rows[slot] = static_cast<int32_t>(until - begin);
        begin = until;
    }
    served.done = end;
    piece = {g.jobs_.data(), static_cast<int>(g.jobs_.size()), g.received_.data(), static_cast<int>(end - first)};
    return true;
}

void Round::answer() {
    CM_EXCHANGE_POINT("written");
    group_.count_work(*served_);
    const bool whole = served_->done == served_->total;
    if (whole) {
        served_->service->answer();
        served_->service.reset();
    }
    group_.exchange_.keep_serving(group_.large_.service.has_value());
}

const cm_linear& Round::gate_up(int slot) const { return group_.place_.gate_up[slot]; }

const cm_linear& Round::down(int slot) const { return group_.place_.down[slot]; }

}  // namespace cm
