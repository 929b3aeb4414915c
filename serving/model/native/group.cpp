#include "group.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace cm {
namespace {

// How long to wait for a new epoch after a loss: as long as a rank lives without a shell.
constexpr std::chrono::seconds kShellPatience{30};

// Bounds the wait for peers that compute: they come soon unless they are stopped. Of 1, 4 and 16 passes over what had
// been asked last, measured with two ranks, the last is as fast as any on free cores and the fastest (by a tenth) on
// shared ones.
constexpr int kGatherPasses = 16;

// The same at a rank without attention: a peer that comes in this time saves at most a pass. Without any wait two peers
// on two cores had 0.87 (10 M parameters) and 0.79 (372 M) of the rate of colocated ranks.
constexpr int kIdleGatherPasses = 1;

// Part of a step's passes for which it waits for a peer between two steps: all of the step's can be shared then.
constexpr int kStepGatherShare = 4;

// Rows of a long session are computed in pieces that take so long, or as long as small sessions take: shorter ones keep
// fewer threads at work.
constexpr std::chrono::nanoseconds kLeastPiece{1000000};

// Rows of a small session; a prompt's are more.
constexpr uint32_t kFewRows = 128;

size_t map_entries(int layers, int experts) { return static_cast<size_t>(layers) * CM_MAP_POSITIONS * experts; }

ExpertMap map_of(uint64_t version, uint64_t epoch, const uint32_t* homes, int layers, int experts) {
    ExpertMap found{version, epoch, {homes, homes + map_entries(layers, experts)}, 0, 0, {}};
    const size_t row = static_cast<size_t>(experts), layer = CM_MAP_POSITIONS * row;
    for (size_t i = 0; i < found.homes.size(); ++i) {
        if (homes[i] != CM_MAP_MASKED) {
            found.ranks |= ub::just(homes[i] >> 16);
        } else if (i % layer < row) {  // the same at all positions
            found.closed.resize(static_cast<size_t>(layers) * row);
            found.closed[i / layer * row + i % row] = 1;
            ++found.masked;
        }
    }
    return found;
}

// Whether an expert of a layer is masked at all positions or at none, and enough others are left.
bool can_choose(const uint32_t* layer, int experts, int top_k) {
    int left = 0;
    for (int expert = 0; expert < experts; ++expert) {
        const bool masked = layer[expert] == CM_MAP_MASKED;
        left += !masked;
        for (int position = 1; position < CM_MAP_POSITIONS; ++position)
            if ((layer[position * experts + expert] == CM_MAP_MASKED) != masked) return false;
    }
    return left >= top_k;
}

// Written by one thread, and read concurrently by others.
template <class Number>
void add(std::atomic<Number>& sum, Number more) {
    sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

int32_t check_map(const cm_group_place& place, const cm_model& model, uint64_t version, const uint32_t* homes) {
    const int layers = place.layers, experts = model.experts;
    if (version == 0)
        return fail(CM_BAD_ARGUMENT, "version %llu of an expert map", static_cast<unsigned long long>(version));
    for (int layer = 0; layer < layers; ++layer)
        if (!can_choose(homes + map_entries(layer, experts), experts, model.top_k))
            return fail(CM_BAD_ARGUMENT, "layer %d: masked experts differ by position, or leave fewer than %d", layer,
                        model.top_k);
    for (size_t i = 0; i < map_entries(layers, experts); ++i) {
        if (homes[i] == CM_MAP_MASKED) continue;
        const uint32_t rank = homes[i] >> 16, slot = homes[i] & 0xffff;
        const bool own = rank == static_cast<uint32_t>(place.rank);
        if (rank >= static_cast<uint32_t>(place.ranks) ||
            (own && (slot >= static_cast<uint32_t>(place.slots) || !place.gate_up[slot].out_features)))
            return fail(CM_BAD_ARGUMENT, "expert %zu of layer %zu: slot %u of rank %u does not hold it", i % experts,
                        i / experts / CM_MAP_POSITIONS, slot, rank);
    }
    return CM_OK;
}

Group::Group(const cm_group_place& place, const cm_model& model, int max_rows, std::vector<ub::Window> windows)
    : place_(place),
      model_(model),
      deadline_(place.deadline_ns),
      exchange_(static_cast<uint32_t>(place.rank), windows, watch_, ub::Patience{}),
      used_(map_of(place.map_version, 0, place.map, place.layers, model.experts)),
      used_version_(place.map_version),
      epoch_(exchange_.epoch()),
      counts_(static_cast<size_t>(place.layers) * static_cast<size_t>(model.experts)) {
    for (int layer = 0, next = 0; layer < model.layers; ++layer) {
        layer_of_block_.push_back(next);
        next += model.blocks[layer].gate.out_features ? 1 : 0;
    }
    exchange_.use_map(used_.version);
    wait_as_members();
    const size_t room = static_cast<size_t>(max_rows) * static_cast<size_t>(model.top_k);
    received_.resize(room);
    for (ServiceState* state : {&small_, &large_}) {
        state->slot_rows.resize(network_count());
        state->used_slots.reserve(network_count());
    }
    jobs_.reserve(room);
}

int Group::layer_of(const cm_block* block) const {
    if (model_.draft && block == &model_.draft->block) return place_.layers - 1;
    return layer_of_block_[static_cast<size_t>(block - model_.blocks)];
}

void Group::wait_as_members() {
    exchange_.wait_with(ub::Patience::of(__builtin_popcountll(exchange_.members()), place_.cores));
}

bool Group::note(const ub::Outcome& outcome) {
    if (!outcome) failure_ = outcome;
    return static_cast<bool>(outcome);
}

// Sort incoming entries by slot. Mismatch if a peer named an empty slot.
ub::Outcome Group::count_rows(ServiceState& state) {
    for (const uint32_t slot : state.used_slots) state.slot_rows[slot] = 0;
    state.used_slots.clear();
    state.total = state.done = 0;
    ub::Outcome found;
    each_entry(*state.service, [&](ub::Service::Source source, const ub::Entry& entry) {
        if (!holds(entry)) {
            found = exchange_.mismatch(source.rank);
            return;
        }
        const uint32_t slot = index_of(entry);
        if (state.slot_rows[slot]++ == 0) state.used_slots.push_back(slot);
        ++state.total;
    });
    std::sort(state.used_slots.begin(), state.used_slots.end());
    return found;
}

// Sources begin with different ranks: else sessions of one row would all ask the same one.
void Group::send_shared(ub::Dispatch& dispatch, int layer, int first, int rows) const {
    std::array<uint32_t, ub::kMostRanks> ranks{};
    uint32_t count = 0;
    ub::Exchange::for_each(exchange_.answering(), [&](uint32_t rank) { ranks[count++] = rank; });
    for (int row = 0; row < rows; ++row) {
        const uint32_t run = static_cast<uint32_t>(row) * count / static_cast<uint32_t>(rows);
        dispatch.send(ranks[(exchange_.self() + run) % count], static_cast<uint32_t>(first + row),
                      static_cast<uint32_t>(model_.top_k), kSharedSlot - static_cast<uint32_t>(layer));
    }
}

uint32_t Group::few() const { return kFewRows * static_cast<uint32_t>(model_.top_k + place_.shared); }

ub::Gathering Group::gathering() const {
    const std::chrono::nanoseconds fixed(place_.gather_ns);
    if (fixed.count() >= 0) return {fixed, fixed, few()};
    const std::chrono::nanoseconds pass = exchange_.asked(few()) ? small_.pass : large_.pass;
    return {(asks() ? kGatherPasses : kIdleGatherPasses) * pass, place_.layers * pass / kStepGatherShare, few()};
}

// Whole slots as far as possible, and at least one network's rows.
int64_t Group::piece_end() const {
    const ServiceState& state = large_;
    const auto time = static_cast<double>(std::max(small_.pass, kLeastPiece).count());
    const int64_t most = state.row_ns > 0.0 ? static_cast<int64_t>(time / state.row_ns) : 0;
    int64_t begin = 0, end = state.done;
    for (const uint32_t slot : state.used_slots) {
        const int64_t until = begin + state.slot_rows[slot];
        for (int64_t at = std::max(begin, state.done); at < until; at += kFeedRows) {
            const int64_t next = std::min(until, at + kFeedRows);
            if (end > state.done && next - state.done > most) return end;
            end = next;
        }
        begin = until;
    }
    return end;
}

bool Group::watch(const int32_t* processes) {
    for (uint32_t rank = 0; rank < exchange_.shape().ranks; ++rank)
        if (rank != exchange_.self() && processes[rank] > 0 && !watch_.add(rank, processes[rank])) return false;
    return true;
}

bool Group::begin() {
    failure_ = {};
    return take_map() && note(exchange_.begin_step(deadline()));
}

bool Group::await_slower_peers(ub::Deadline deadline) {
    const auto none = [this] { return !exchange_.has_slower_peers(); };
    return !none() && exchange_.await_ask(deadline, none) && exchange_.asked();
}

void Group::take_sources() {
    if (large_.service || !new_sources_.exchange(false)) return;  // in the midst of a service nobody joins or leaves
    std::lock_guard<std::mutex> guard(lock_);
    for (const SourceChange& change : changes_) {
        if (change.window)
            exchange_.admit(change.rank, *change.window);
        else
            exchange_.drop(change.rank);
    }
    changes_.clear();
}

// If the newest map sends rows to a rank which is no member any more, nobody would compute them: this rank lacks the
// epoch's map, and fails instead.
bool Group::take_map() {
    if (new_map_.exchange(false)) {
        std::lock_guard<std::mutex> guard(lock_);
        while (!pending_.empty() && pending_.front().epoch <= exchange_.epoch()) {
            used_ = std::move(pending_.front());
            pending_.erase(pending_.begin());
        }
        used_version_.store(used_.version);
        exchange_.use_map(used_.version);
    }
    return note(check_homes());
}

ub::Outcome Group::check_homes() const {
    if (!ub::asks(exchange_.role())) return {};
    const ub::RankSet own = ub::answers(exchange_.role()) ? ub::just(exchange_.self()) & exchange_.members() : 0;
    const ub::RankSet gone = used_.ranks & ~(exchange_.answering() | own);
    return gone ? exchange_.mismatch(static_cast<uint32_t>(__builtin_ctzll(gone))) : ub::Outcome{};
}

bool Group::recover() {
    const bool lost = failure_.ending == ub::Ending::kPeerLost || failure_.ending == ub::Ending::kEpochChanged;
    if (!exchange_.await_epoch(lost ? ub::Clock::now() + kShellPatience : deadline())) return false;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (const SourceChange& change : changes_)
            if (change.window) exchange_.replace(change.rank, *change.window);
        changes_.clear();
        for (const Peer& peer : newcomers_) {
            exchange_.replace(peer.rank, peer.window);
            watch_.add(peer.rank, peer.process);  // if that fails the shell reports its death
        }
        newcomers_.clear();
        new_map_.store(!pending_.empty());
        small_.service.reset();
        large_.service.reset();
        exchange_.enter();
    }
    epoch_.store(exchange_.epoch());
    wait_as_members();
    if (!ub::has(exchange_.members(), exchange_.self())) return false;
    failure_ = {};
    return true;
}

bool Group::await_ask(ub::Deadline deadline) {
    const auto wants = [this] { return wanted_.load() || new_map_.load() || new_sources_.load(); };
    const ub::Outcome outcome = exchange_.await_ask(deadline, wants);
    if (outcome.ending == ub::Ending::kLate) return false;
    return note(outcome) && exchange_.asked();
}

void Group::wake() {
    wanted_.store(true);
    ub::ring(exchange_.window(exchange_.self()).bell());
}

int32_t Group::set_peer(uint32_t rank, const ub::Window& window, int32_t process) {
    std::lock_guard<std::mutex> guard(lock_);
    newcomers_.push_back({rank, window, process});
    return CM_OK;
}

bool Group::settled() {
    std::lock_guard<std::mutex> guard(lock_);
    return changes_.empty() && newcomers_.empty();
}

void Group::change_source(const SourceChange& change) {
    {
        std::lock_guard<std::mutex> guard(lock_);
        changes_.push_back(change);
    }
    new_sources_.store(true);
    ub::ring(exchange_.window(exchange_.self()).bell());
}

int32_t Group::set_map(uint64_t version, const uint32_t* homes, uint64_t epoch) {
    if (const int32_t error = check_map(place_, model_, version, homes))
        return error;
    std::lock_guard<std::mutex> guard(lock_);
    const uint64_t newest = pending_.empty() ? used_version_.load() : pending_.back().version;
    if (version <= newest)
        return fail(CM_BAD_ARGUMENT, "expert map %llu is not newer than what is here",
                    static_cast<unsigned long long>(version));
    while (!pending_.empty() && pending_.back().epoch >= epoch) pending_.pop_back();  // it would never be used
    pending_.push_back(map_of(version, epoch, homes, place_.layers, model_.experts));
    new_map_.store(true);
    ub::ring(exchange_.window(exchange_.self()).bell());
    return CM_OK;
}

uint64_t Group::map_version() {
    std::lock_guard<std::mutex> guard(lock_);
    return std::min(used_version_.load(), exchange_.oldest_map());
}

const uint8_t* Group::masked(const cm_block* block) const {
    if (used_.closed.empty()) return nullptr;
    return used_.closed.data() + static_cast<size_t>(layer_of(block)) * static_cast<size_t>(model_.experts);
}

void Group::complete_step() { masked_ = std::max(masked_, used_.masked); }

void Group::counts(uint64_t* to) const {
    for (size_t i = 0; i < counts_.size(); ++i) to[i] = counts_[i].load(std::memory_order_relaxed);
}

// Rows announced in this round, and their results.
void Group::count_bytes(const ub::Dispatch& dispatch, int64_t row_bytes) {
    const uint64_t result_bytes = exchange_.shape().result_bytes;
    ub::Exchange::for_each(exchange_.answering(), [&](uint32_t rank) {
        const uint64_t entries = dispatch.sent(rank);
        add(row_bytes_[rank], entries * static_cast<uint64_t>(row_bytes));
        add(result_bytes_[rank], entries * result_bytes);
    });
}

void Group::count_time(ub::Clock::time_point begun) {
    add<int64_t>(step_ns_, std::chrono::nanoseconds(ub::Clock::now() - begun).count());
}

// Two clock reads per layer are negligible next to some hundred thousand products.
ub::ServiceTimes Group::count_work(ServiceState& state) {
    if (state.total == 0) return {};
    const ub::Clock::time_point now = ub::Clock::now();
    const std::chrono::nanoseconds spent = now - work_begun_;
    state.spent += spent;
    state.row_ns = static_cast<double>(state.spent.count()) / static_cast<double>(state.done);
    add<int64_t>(work_ns_, spent.count());
    if (state.done < state.total) return {};
    state.pass = std::exchange(state.spent, std::chrono::nanoseconds(0));
    add(work_rows_, state.total);
    add(work_nets_, static_cast<int64_t>(state.used_slots.size()));
    return {ub::ns_of(state.taken), ub::ns_of(now)};
}

void Group::work(int64_t* to) const {
    to[0] = work_ns_.load(std::memory_order_relaxed);
    to[1] = work_rows_.load(std::memory_order_relaxed);
    to[2] = work_nets_.load(std::memory_order_relaxed);
}

int64_t Group::usage(uint64_t* per_peer) const {
    const uint32_t ranks = exchange_.shape().ranks;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        per_peer[rank] = row_bytes_[rank].load(std::memory_order_relaxed);
        per_peer[ranks + rank] = result_bytes_[rank].load(std::memory_order_relaxed);
        per_peer[2 * ranks + rank] = static_cast<uint64_t>(exchange_.waited().ns(rank));
    }
    return step_ns_.load(std::memory_order_relaxed);
}

}  // namespace cm
