// The C interface of groups, and steps of an engine that is a rank of one.
#include <algorithm>
#include <exception>
#include <memory>

#include "engine.h"
#include "error.h"
#include "group.h"
#include "pack.h"

namespace cm {
namespace {

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

// A row in the input form of experts of either kind: the model's numbers, or INT8 ones followed by their scale.
int32_t row_bytes(const cm_model& m) {
    const int64_t width = round_up(m.hidden, kInnerMultiple), number = m.form == CM_F32 ? 4 : 2;
    return static_cast<int32_t>(std::max(width * number, width + static_cast<int64_t>(sizeof(float))));
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

// Rows are staged once, in the form that routed experts take: shared ones elsewhere must take the same.
int32_t check_shared_layer(const cm_block& block) {
    if (!block.gate.out_features) return CM_OK;
    if (!block.gate_up.out_features) return fail(CM_BAD_ARGUMENT, "a layer with experts has no shared ones");
    const bool same = (block.gate_up.form == CM_INT8) == (block.expert_gate_up[0].form == CM_INT8);
    return same ? CM_OK : fail(CM_BAD_ARGUMENT, "shared experts and routed ones take rows of different forms");
}

int32_t check_shared(const cm_group_place& place, const cm_model& m, ub::Role role) {
    if (role == ub::Role::kBoth || place.slots + place.layers > 0x10000)
        return fail(CM_BAD_ARGUMENT, "shared experts at rank %d, with %d slots", place.rank, place.slots);
    if (role == ub::Role::kExperts) {
        if (!place.shared_gate_up || !place.shared_down || !m.blocks->gate_up.out_features)
            return fail(CM_BAD_ARGUMENT, "rank %d has no shared experts", place.rank);
        for (int layer = 0; layer < place.layers; ++layer) {
            const cm_linear &gate_up = place.shared_gate_up[layer], &down = place.shared_down[layer];
            if (gate_up.in_features != m.hidden || gate_up.out_features != m.blocks->gate_up.out_features ||
                down.in_features != gate_up.out_features / 2 || down.out_features != m.hidden || !gate_up.packed ||
                !down.packed)
                return fail(CM_BAD_ARGUMENT, "layer %d: no shared experts of this model", layer);
        }
        return CM_OK;
    }
    int32_t error = m.draft ? check_shared_layer(m.draft->block) : CM_OK;
    for (int layer = 0; !error && layer < m.layers; ++layer) error = check_shared_layer(m.blocks[layer]);
    return error;
}

int32_t failed(const Group& group) {
    const ub::Outcome& found = group.failure();
    return fail(CM_GROUP, "rank %u of the group: %s, in step %u, round %u", found.rank, ub::name(found.ending),
                found.step, found.round);
}

// Serve those who have asked, and are about to. opens: whether the engine's threads sleep.
void serve(cm_engine& engine, bool opens) {
    const ub::Clock::time_point begun = ub::Clock::now();
    engine.group->gather();
    if (opens) engine.team.open();
    engine.kernels.serve(engine);
    if (opens) engine.team.close();
    engine.group->count_time(begun);
}

// For no longer than the own step has taken.
void serve_slower_peers(cm_engine& engine, ub::Clock::time_point begun) {
    const ub::Clock::time_point now = ub::Clock::now();
    while (!engine.group->failed() && engine.group->await_slower_peers(now + (now - begun))) serve(engine, false);
}

}  // namespace

int32_t step_with_peers(cm_engine& engine, const cm_batch& batch, const cm_answer& answer) {
    Group& group = *engine.group;
    for (;;) {
        const ub::Clock::time_point begun = ub::Clock::now();
        if (!group.failed() && group.begin()) {
            engine.team.open();
            const int32_t result = engine.kernels.step(engine, batch, answer);
            const bool done = !group.failed();
            if (done)
                group.complete_step();
            else
                group.end_rounds();
            group.count_time(begun);
            if (done) serve_slower_peers(engine, begun);
            engine.team.close();
            if (done) return result;
        }
        if (!group.recover()) return failed(group);
    }
}

}  // namespace cm

int32_t cm_window_shape_of(const cm_engine* engine, int32_t ranks, int32_t shared, cm_window_shape* shape) {
    const cm_model& m = engine->model;
    const int32_t choices = m.top_k + (shared ? (m.bf16_results ? 2 : 1) : 0);  // in BF16 results two make a float32 one
    *shape = {ranks, engine->max_rows, choices, cm::row_bytes(m), m.hidden * (m.bf16_results ? 2 : 4)};
    if (cm::layers_with_experts(m) == 0) return cm::fail(CM_BAD_ARGUMENT, "the model has no routed experts");
    if (cm::possible(*shape)) return CM_OK;
    return cm::fail(CM_BAD_ARGUMENT, "%d ranks with %d rows for %d experts each", ranks, engine->max_rows, m.top_k);
}

int64_t cm_window_bytes(const cm_window_shape* shape) {
    return cm::possible(*shape) ? static_cast<int64_t>(cm::ub::WindowLayout(cm::shape_of(*shape)).bytes) : 0;
}

int32_t cm_window_format(void* memory, const cm_window_shape* shape, int32_t owner, int32_t role, uint64_t epoch,
                         uint64_t members) {
    const bool aligned = reinterpret_cast<uintptr_t>(memory) % cm::ub::kLine == 0;
    if (!cm::possible(*shape) || !aligned || owner < 0 || owner >= shape->ranks || role < CM_ATTENTION || role > CM_BOTH)
        return cm::fail(CM_BAD_ARGUMENT, "a window of rank %d of %d, of role %d", owner, shape->ranks, role);
    cm::ub::Window::format(memory, cm::shape_of(*shape), static_cast<uint32_t>(owner),
                           static_cast<cm::ub::Role>(role), epoch, members);
    return CM_OK;
}

void cm_window_raise(void* memory, uint64_t epoch, uint64_t members) {
    cm::ub::raise_epoch(cm::ub::Window::open(memory), epoch, members);
}

int32_t cm_group_join(cm_engine* engine, const cm_group_place* place) {
    cm_window_shape wanted;
    const int32_t ranks = place->ranks;
    if (const int32_t error = cm_window_shape_of(engine, ranks, place->shared, &wanted)) return error;
    if (place->rank < 0 || place->rank >= ranks || place->layers != cm::layers_with_experts(engine->model) ||
        place->slots < 0 || place->slots > 0x10000 || place->cores < 1 || place->deadline_ns < 1)
        return cm::fail(CM_BAD_ARGUMENT, "rank %d of %d with %d slots in %d layers", place->rank, ranks, place->slots,
                        place->layers);
    std::vector<cm::ub::Window> windows;
    for (int32_t rank = 0; rank < ranks; ++rank) {
        const bool there = rank == place->rank || place->windows[rank] != nullptr;
        void* memory = place->windows[there ? rank : place->rank];  // that of a missing one is never read
        if (!cm::ub::Window::fits(memory, cm::shape_of(wanted), static_cast<uint32_t>(there ? rank : place->rank)))
            return cm::fail(CM_BAD_ARGUMENT, "the window of rank %d is of another model, or of other step sizes", rank);
        windows.push_back(cm::ub::Window::open(memory));
    }
    const cm::ub::Window& own = windows[static_cast<size_t>(place->rank)];
    const bool asks = cm::ub::asks(own.header().role);
    if (asks && (engine->nets || own.shape().max_rows < static_cast<uint32_t>(engine->max_rows)))
        return cm::fail(CM_BAD_ARGUMENT, "rank %d has a window for steps of %u rows", place->rank, own.shape().max_rows);
    if (const int32_t error = cm::check_slots(*place, engine->model, cm::width_of(engine->model))) return error;
    if (const int32_t error = place->shared ? cm::check_shared(*place, engine->model, own.header().role) : 0) return error;
    if (const int32_t error = cm::check_map(*place, engine->model, place->map_version, place->map))
        return error;
    try {
        auto group = std::make_unique<cm::Group>(*place, engine->model, engine->max_rows, std::move(windows));
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
        group.take_sources();
        if (!group.failed() && group.take_map()) {
            const bool asked = group.await_ask(until);
            if (asked) cm::serve(*engine, true);
            if (!group.failed() && cm::ub::Clock::now() >= until) {
                group.wanted();
                return CM_OK;
            }
        }
        if (group.failed() && !group.recover()) return cm::failed(group);
    }
}

void cm_group_use_micro_batches(cm_engine* engine, int32_t count) { engine->group->use_micro_batches(count); }

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

int32_t cm_group_admit(cm_engine* engine, int32_t rank, void* window) {
    cm::Group& group = *engine->group;
    const cm::ub::WindowShape shape = group.shape();
    if (rank < 0 || static_cast<uint32_t>(rank) >= shape.ranks ||
        !cm::ub::Window::fits(window, shape, static_cast<uint32_t>(rank)))
        return cm::fail(CM_BAD_ARGUMENT, "the window of rank %d is of another model, or of other step sizes", rank);
    const cm::ub::Window opened = cm::ub::Window::open(window);
    if (group.asks() || opened.header().role != cm::ub::Role::kAttention)
        return cm::fail(CM_BAD_ARGUMENT, "rank %d cannot join without an epoch: only ranks without experts can", rank);
    group.change_source({static_cast<uint32_t>(rank), opened});
    return CM_OK;
}

int32_t cm_group_drop(cm_engine* engine, int32_t rank) {
    cm::Group& group = *engine->group;
    if (rank < 0 || static_cast<uint32_t>(rank) >= group.shape().ranks || group.asks())
        return cm::fail(CM_BAD_ARGUMENT, "rank %d cannot leave this rank's group without an epoch", rank);
    group.change_source({static_cast<uint32_t>(rank), std::nullopt});
    return CM_OK;
}

int32_t cm_group_settled(cm_engine* engine) { return engine->group == nullptr || engine->group->settled(); }

uint64_t cm_group_epoch(cm_engine* engine) { return engine->group->epoch(); }

uint64_t cm_group_map_version(cm_engine* engine) { return engine->group->map_version(); }

int32_t cm_group_masked(cm_engine* engine) { return engine->group->take_masked(); }

void cm_group_counts(cm_engine* engine, uint64_t* counts) { engine->group->counts(counts); }

int64_t cm_group_usage(const cm_engine* engine, uint64_t* per_peer) { return engine->group->usage(per_peer); }

void cm_group_work(const cm_engine* engine, int64_t* work) { engine->group->work(work); }

void cm_group_sessions(const cm_engine* engine, int64_t* sessions) { engine->group->sessions(sessions); }

int32_t cm_group_awaits(const cm_engine* engine, int64_t* ns) {
    std::chrono::nanoseconds waited;
    const int32_t rank = engine->group->awaited().look(waited);
    *ns = rank < 0 ? 0 : waited.count();
    return rank;
}
