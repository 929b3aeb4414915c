// A cm_engine: the model and cache that it computes with, its threads and its scratch memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "round.h"
#include "team.h"

namespace cm {

// The model of an engine with experts only: of the rest it has the sizes that an exchange needs.
struct ExpertNets {
    explicit ExpertNets(const cm_expert_sizes& sizes);
    ExpertNets(const ExpertNets&) = delete;
    ExpertNets& operator=(const ExpertNets&) = delete;

    cm_linear gate_up, down;  // of any expert, without weights
    std::vector<cm_block> blocks;
    cm_model model;
};

}  // namespace cm

struct cm_engine {
    cm_engine(const cm_model& m, const cm_cache& c, int threads, int rows, int context)
        : model(m), cache(c), max_rows(rows), max_context(context), kernels(cm::kernels()), team(threads) {
        for (int layer = 0; cache.places && layer < model.layers; ++layer) {
            const int place = cache.places[2 * layer], window = model.blocks[layer].window;
            if (!window) sees_all[place] = true;
            if (window > widest[place]) widest[place] = window;
        }
    }
    ~cm_engine();
    cm_engine(const cm_engine&) = delete;
    cm_engine& operator=(const cm_engine&) = delete;

    const cm_model model;
    const cm_cache cache;
    const int max_rows;
    const int max_context;
    bool sees_all[CM_TABLE_WIDTH] = {};  // by block in a table's run: whether a layer there has no window; else
    int widest[CM_TABLE_WIDTH] = {};     // the widest window of its layers
    const cm::Kernels& kernels;
    cm::Team team;
    void* scratch = nullptr;
    size_t scratch_bytes = 0;
    cm_grammar_functions grammar{};  // all null: no sequence has a matcher
    cm::Group* group = nullptr;  // owned; null: all experts are here
    std::unique_ptr<cm::ExpertNets> nets;  // null: a whole model
};

namespace cm {

// A step of the engine's group with a batch of this rank.
int32_t step_with_peers(cm_engine& engine, const cm_batch& batch, const cm_answer& answer);

}  // namespace cm
