#include "group.h"

#include <algorithm>
#include <exception>
#include <memory>

#include "check.h"
#include "engine.h"
#include "pack.h"

namespace cm {
namespace {

constexpr size_t kMostPendingMaps = 8;

// How long to wait for a new epoch after a loss: as long as a rank lives without a shell.
constexpr std::chrono::seconds kShellPatience{30};

size_t map_entries(int layers, int experts) { return static_cast<size_t>(layers) * CM_MAP_POSITIONS * experts; }

// The inner width of an expert.
int width_of(const cm_model& m) {
    for (int layer = 0; layer < m.layers; ++layer)
        if (m.blocks[layer].gate.out_features) return m.blocks[layer].expert_gate_up[0].out_features / 2;
    return m.draft->block.expert_gate_up[0].out_features / 2;
}

int layers_with_experts(const cm_model& m) {
    int found = m.draft && m.draft->block.gate.out_features ? 1 : 0;
    for (int layer = 0; layer < m.layers; ++layer) found += m.blocks[layer].gate.out_features ? 1 : 0;
    return found;
}

ub::WindowShape shape_of(const cm_window_shape& s) {
    return {static_cast<uint32_t>(s.ranks), static_cast<uint32_t>(s.max_rows), static_cast<uint32_t>(s.top_k),
            static_cast<uint32_t>(s.row_bytes), static_cast<uint32_t>(s.result_bytes)};
}

bool possible(const cm_window_shape& s) {
    return s.ranks > 0 && s.max_rows > 0 && s.top_k > 0 && s.row_bytes > 0 && s.result_bytes > 0 && shape_of(s).possible();
}

// A row as experts of either kind multiply it: the model's numbers, or INT8 ones with their scale behind.
int32_t row_bytes(const cm_model& m) {
    const int64_t width = round_up(m.hidden, kInnerMultiple), number = m.form == CM_F32 ? 4 : 2;
    return static_cast<int32_t>(std::max(width * number, width + static_cast<int64_t>(sizeof(float))));
}

int32_t check_map(const cm_group_place& place, const ub::WindowShape& shape, int layers, int experts, uint64_t version,
                  const uint32_t* homes) {
    if (version == 0 || version >= ub::kNoMore)
        return fail(CM_BAD_ARGUMENT, "version %llu of an expert map", static_cast<unsigned long long>(version));
    for (size_t i = 0; i < map_entries(layers, experts); ++i) {
        const uint32_t rank = homes[i] >> 16, slot = homes[i] & 0xffff;
        const bool own = rank == static_cast<uint32_t>(place.rank);
        if (rank >= shape.ranks ||
            (own && (slot >= static_cast<uint32_t>(place.slots) || !place.gate_up[slot].out_features)))
            return fail(CM_BAD_ARGUMENT, "expert %zu of layer %zu: slot %u of rank %u does not hold it", i % experts,
                        i / experts / CM_MAP_POSITIONS, slot, rank);
    }
    return CM_OK;
}

ub::RankSet ranks_of(const std::vector<uint32_t>& homes) {
    ub::RankSet found = 0;
    for (const uint32_t home : homes) found |= ub::just(home >> 16);
    return found;
}

int32_t check_slots(const cm_group_place& place, const cm_model& m, int width) {
    for (int slot = 0; slot < place.slots; ++slot) {
        const cm_linear &gate_up = place.gate_up[slot], &down = place.down[slot];
        if (gate_up.out_features == 0) continue;
        if (gate_up.in_features != m.hidden || gate_up.out_features != 2 * width || down.in_features != width ||
            down.out_features != m.hidden || !gate_up.packed || !down.packed)
            return fail(CM_BAD_ARGUMENT, "slot %d holds no expert of this model", slot);
    }
    return CM_OK;
}

int32_t failed(const Group& group) {
    const ub::Outcome& found = group.failure();
    return fail(CM_GROUP, "rank %u of the group: %s, in step %u, round %u", found.rank, ub::name(found.ending),
                found.step, found.round);
}

// What one writer adds, others may read meanwhile.
template <class Number>
void add(std::atomic<Number>& sum, Number more) {
    sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

Group::Group(const cm_group_place& place, const cm_model& model, std::vector<ub::Window> windows)
    : place_(place),
      model_(model),
      deadline_(place.deadline_ns),
      exchange_(static_cast<uint32_t>(place.rank), windows, watch_, ub::Patience{}),
      used_{place.map_version, 0, {place.map, place.map + map_entries(place.layers, model.experts)}, 0},
      used_version_(place.map_version),
      epoch_(exchange_.epoch()),
      counts_(static_cast<size_t>(place.layers) * static_cast<size_t>(model.experts)),
      slot_rows_(static_cast<size_t>(place.slots)) {
    used_.ranks = ranks_of(used_.homes);
    for (int layer = 0, next = 0; layer < model.layers; ++layer) {
        layer_of_block_.push_back(next);
        next += model.blocks[layer].gate.out_features ? 1 : 0;
    }
    wait_as_members();
    const size_t room = exchange_.shape().max_entries();
    received_.resize(room);
    used_slots_.reserve(static_cast<size_t>(place.slots));
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

// Sort what has come by slots. Mismatch if a peer named one that holds nothing.
ub::Outcome Group::count_rows() {
    for (const uint32_t slot : used_slots_) slot_rows_[slot] = 0;
    used_slots_.clear();
    total_ = taken_ = 0;
    ub::Outcome found;
    each_entry([&](uint32_t source, const ub::Entry& entry) {
        if (!holds(entry.slot)) {
            found = exchange_.mismatch(source);
            return;
        }
        if (slot_rows_[entry.slot]++ == 0) used_slots_.push_back(entry.slot);
        ++total_;
    });
    std::sort(used_slots_.begin(), used_slots_.end());
    return found;
}

bool Group::watch(const int32_t* processes) {
    for (uint32_t rank = 0; rank < exchange_.shape().ranks; ++rank)
        if (rank != exchange_.self() && processes[rank] > 0 && !watch_.add(rank, processes[rank])) return false;
    return true;
}

uint64_t Group::newest_map() {
    std::lock_guard<std::mutex> guard(lock_);
    uint64_t newest = used_.version;
    for (const ExpertMap& map : pending_)
        if (map.epoch <= exchange_.epoch()) newest = std::max(newest, map.version);
    return newest;
}

// Ranks announce the newest map that they have: the oldest of those is what all have. If that one sends rows to a rank
// which is no member any more, nobody would compute them: somebody lacks the epoch's map, and the group fails instead.
bool Group::begin() {
    new_map_.store(false);
    uint64_t common = newest_map();
    failure_ = {};
    if (!note(exchange_.begin_step(static_cast<uint32_t>(common), deadline()))) return false;
    ub::Exchange::for_each(exchange_.members(),
                           [&](uint32_t rank) { common = std::min<uint64_t>(common, exchange_.count_from(rank)); });
    return use_map(common) && note(check_homes());
}

ub::Outcome Group::check_homes() const {
    const ub::RankSet gone = used_.ranks & ~exchange_.members();
    return gone ? exchange_.mismatch(static_cast<uint32_t>(__builtin_ctzll(gone))) : ub::Outcome{};
}

bool Group::use_map(uint64_t common) {
    if (common == used_.version) return true;
    std::lock_guard<std::mutex> guard(lock_);
    const auto found =
        std::find_if(pending_.begin(), pending_.end(), [&](const ExpertMap& map) { return map.version == common; });
    if (found == pending_.end()) return note(exchange_.mismatch(exchange_.self()));
    used_ = std::move(*found);
    pending_.erase(pending_.begin(), found + 1);
    used_version_.store(used_.version);
    return true;
}

bool Group::recover() {
    const bool lost = failure_.ending == ub::Ending::kPeerLost || failure_.ending == ub::Ending::kEpochChanged;
    if (!exchange_.await_epoch(lost ? ub::Clock::now() + kShellPatience : deadline())) return false;
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (const Peer& peer : newcomers_) {
            exchange_.replace(peer.rank, peer.window);
            watch_.add(peer.rank, peer.process);  // if that fails the shell tells of its death
        }
        newcomers_.clear();
        new_map_.store(!pending_.empty());
    }
    epoch_.store(exchange_.epoch());
    wait_as_members();
    if (!ub::has(exchange_.members(), exchange_.self())) return false;
    failure_ = {};
    return true;
}

bool Group::await_step(ub::Deadline deadline) {
    const auto wanted = [this] { return wanted_.load() || new_map_.load(); };
    const ub::Outcome outcome = exchange_.await_step(deadline, wanted);
    if (outcome.ending == ub::Ending::kLate || (outcome && wanted_.load())) return false;
    return note(outcome);
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

int32_t Group::set_map(uint64_t version, const uint32_t* homes, uint64_t epoch) {
    if (const int32_t error = check_map(place_, exchange_.shape(), place_.layers, model_.experts, version, homes))
        return error;
    std::lock_guard<std::mutex> guard(lock_);
    const uint64_t newest = pending_.empty() ? used_version_.load() : pending_.back().version;
    if (version <= newest)
        return fail(CM_BAD_ARGUMENT, "expert map %llu is not newer than what is here",
                    static_cast<unsigned long long>(version));
    if (pending_.size() == kMostPendingMaps)
        return fail(CM_BAD_ARGUMENT, "%zu expert maps wait to be used, and not all ranks have the first",
                    kMostPendingMaps);
    pending_.push_back({version, epoch, {homes, homes + map_entries(place_.layers, model_.experts)}, 0});
    pending_.back().ranks = ranks_of(pending_.back().homes);
    new_map_.store(true);
    ub::ring(exchange_.window(exchange_.self()).bell());
    return CM_OK;
}

void Group::counts(uint64_t* to) const {
    for (size_t i = 0; i < counts_.size(); ++i) to[i] = counts_[i].load(std::memory_order_relaxed);
}

// Rows that were announced in this round, and the results that will come back for them.
void Group::count_bytes(int64_t row_bytes) {
    const uint64_t result_bytes = exchange_.shape().result_bytes;
    ub::Exchange::for_each(exchange_.members() & ~ub::just(exchange_.self()), [&](uint32_t rank) {
        const uint64_t entries = dispatch_->sent(rank);
        add(row_bytes_[rank], entries * static_cast<uint64_t>(row_bytes));
        add(result_bytes_[rank], entries * result_bytes);
    });
}

void Group::count_time(ub::Clock::time_point begun) {
    add<int64_t>(step_ns_, std::chrono::nanoseconds(ub::Clock::now() - begun).count());
}

// The round's rows are computed: two looks at the clock a layer, beside some hundred thousand products.
void Group::count_work() {
    if (total_ == 0) return;
    add<int64_t>(work_ns_, std::chrono::nanoseconds(ub::Clock::now() - work_begun_).count());
    add(work_rows_, total_);
    add(work_nets_, static_cast<int64_t>(used_slots_.size()));
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

int32_t step_with_peers(cm_engine& engine, const cm_batch& batch, const cm_answer& answer) {
    Group& group = *engine.group;
    for (;;) {
        int32_t result = CM_OK;
        const ub::Clock::time_point begun = ub::Clock::now();
        if (!group.failed() && group.begin()) {
            engine.team.open();
            result = engine.kernels.step(engine, batch, answer);
            if (!group.failed()) engine.kernels.serve(engine);  // whatever the step's own result is
            engine.team.close();
        }
        group.count_time(begun);
        if (!group.failed()) return result;
        if (!group.recover()) return failed(group);
    }
}

}  // namespace cm

int32_t cm_window_shape_of(const cm_engine* engine, int32_t ranks, cm_window_shape* shape) {
    const cm_model& m = engine->model;
    *shape = {ranks, engine->max_rows, m.top_k, cm::row_bytes(m), m.hidden * (m.bf16_results ? 2 : 4)};
    if (cm::layers_with_experts(m) == 0) return cm::fail(CM_BAD_ARGUMENT, "the model has no routed experts");
    if (cm::possible(*shape)) return CM_OK;
    return cm::fail(CM_BAD_ARGUMENT, "%d ranks with %d rows for %d experts each", ranks, engine->max_rows, m.top_k);
}

int64_t cm_window_bytes(const cm_window_shape* shape) {
    return cm::possible(*shape) ? static_cast<int64_t>(cm::ub::WindowLayout(cm::shape_of(*shape)).bytes) : 0;
}

int32_t cm_window_format(void* memory, const cm_window_shape* shape, int32_t owner, uint64_t epoch, uint64_t members) {
    const bool aligned = reinterpret_cast<uintptr_t>(memory) % cm::ub::kLine == 0;
    if (!cm::possible(*shape) || !aligned || owner < 0 || owner >= shape->ranks)
        return cm::fail(CM_BAD_ARGUMENT, "a window of rank %d of %d", owner, shape->ranks);
    cm::ub::Window::format(memory, cm::shape_of(*shape), static_cast<uint32_t>(owner), epoch, members);
    return CM_OK;
}

void cm_window_raise(void* memory, uint64_t epoch, uint64_t members) {
    cm::ub::raise_epoch(cm::ub::Window::open(memory), epoch, members);
}

int32_t cm_group_join(cm_engine* engine, const cm_group_place* place) {
    cm_window_shape wanted;
    const int32_t ranks = place->ranks;
    if (const int32_t error = cm_window_shape_of(engine, ranks, &wanted)) return error;
    if (place->rank < 0 || place->rank >= ranks || place->layers != cm::layers_with_experts(engine->model) ||
        place->slots < 0 || place->slots > 0x10000 || place->cores < 1 || place->deadline_ns < 1)
        return cm::fail(CM_BAD_ARGUMENT, "rank %d of %d with %d slots in %d layers", place->rank, ranks, place->slots,
                        place->layers);
    std::vector<cm::ub::Window> windows;
    for (int32_t rank = 0; rank < ranks; ++rank) {
        const bool there = rank == place->rank || place->windows[rank] != nullptr;
        void* memory = place->windows[there ? rank : place->rank];  // nobody looks at that of a missing one
        if (!cm::ub::Window::fits(memory, cm::shape_of(wanted), static_cast<uint32_t>(there ? rank : place->rank)))
            return cm::fail(CM_BAD_ARGUMENT, "the window of rank %d is of another model, or of other step sizes", rank);
        windows.push_back(cm::ub::Window::open(memory));
    }
    if (const int32_t error = cm::check_slots(*place, engine->model, cm::width_of(engine->model))) return error;
    if (const int32_t error = cm::check_map(*place, cm::shape_of(wanted), place->layers, engine->model.experts,
                                            place->map_version, place->map))
        return error;
    try {
        auto group = std::make_unique<cm::Group>(*place, engine->model, std::move(windows));
        if (!group->watch(place->processes))
            return cm::fail(CM_BAD_ARGUMENT, "the processes of the group cannot be watched");
        delete engine->group;
        engine->group = group.release();
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "no memory for a group of %d ranks: %s", ranks, error.what());
    }
    return CM_OK;
}

int32_t cm_group_serve(cm_engine* engine, int64_t ns) {
    cm::Group& group = *engine->group;
    const cm::ub::Deadline until = cm::ub::Clock::now() + std::chrono::nanoseconds(ns);
    for (;;) {
        if (group.wanted()) return CM_OK;
        if (!group.failed()) {
            if (!group.await_step(until) && !group.failed()) {
                group.wanted();
                return CM_OK;
            }
            const cm::ub::Clock::time_point begun = cm::ub::Clock::now();
            if (!group.failed() && group.begin()) {
                engine->team.open();
                engine->kernels.serve(*engine);
                engine->team.close();
            }
            group.count_time(begun);
        }
        if (group.failed() && !group.recover()) return cm::failed(group);
    }
}

void cm_group_wake(cm_engine* engine) { engine->group->wake(); }

int32_t cm_group_set_map(cm_engine* engine, uint64_t version, const uint32_t* map, uint64_t epoch) {
    return engine->group->set_map(version, map, epoch);
}

int32_t cm_group_set_peer(cm_engine* engine, int32_t rank, void* window, int32_t process) {
    const cm::ub::WindowShape shape = engine->group->shape();
    if (rank < 0 || static_cast<uint32_t>(rank) >= shape.ranks ||
        !cm::ub::Window::fits(window, shape, static_cast<uint32_t>(rank)))
        return cm::fail(CM_BAD_ARGUMENT, "the new window of rank %d is of another model, or of other step sizes", rank);
    return engine->group->set_peer(static_cast<uint32_t>(rank), cm::ub::Window::open(window), process);
}

uint64_t cm_group_epoch(cm_engine* engine) { return engine->group->epoch(); }

uint64_t cm_group_map_version(cm_engine* engine) { return engine->group->map_version(); }

void cm_group_counts(cm_engine* engine, uint64_t* counts) { engine->group->counts(counts); }

int64_t cm_group_usage(const cm_engine* engine, uint64_t* per_peer) { return engine->group->usage(per_peer); }

void cm_group_work(const cm_engine* engine, int64_t* work) { engine->group->work(work); }

int32_t cm_group_awaits(const cm_engine* engine, int64_t* ns) {
    std::chrono::nanoseconds waited;
    const int32_t rank = engine->group->awaited().look(waited);
    *ns = rank < 0 ? 0 : waited.count();
    return rank;
}
