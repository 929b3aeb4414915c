#include "engine.h"

#include <sys/mman.h>

#include <exception>
#include <memory>

#include "check.h"
#include "error.h"
#include "group.h"
#include "hardware/ub/native/window.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

// Zeroed and untouched: pages that no step needs cost nothing. Large pages if a step accesses all of it.
void* reserve(size_t bytes, bool large) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
    if (large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

}  // namespace

cm_engine::~cm_engine() {
    delete group;
    if (scratch == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(scratch, scratch_bytes);  // arena.h; the next owner of these pages may use all of them
#endif
    munmap(scratch, scratch_bytes);
}

namespace {

int32_t finish(std::unique_ptr<cm_engine> made, cm_engine** engine) {
    made->scratch_bytes = made->kernels.scratch_bytes(*made);
    made->scratch = reserve(made->scratch_bytes, made->nets == nullptr);
    if (made->scratch == nullptr)
        return cm::fail(CM_NO_MEMORY, "no %zu bytes of memory for steps of %d rows", made->scratch_bytes, made->max_rows);
    *engine = made.release();
    return CM_OK;
}

}  // namespace

int32_t cm_engine_new(const cm_model* model, const cm_cache* cache, int32_t threads, int32_t max_rows,
                      int32_t max_context, cm_engine** engine) {
    *engine = nullptr;
    if (threads < 1 || threads > 1024 || max_rows < 1 || max_context < 1) {
        return cm::fail(CM_BAD_ARGUMENT, "an engine of %d threads, %d rows, %d tokens of context", threads, max_rows,
                        max_context);
    }
    if (const int32_t error = cm::check_model(*model, *cache)) return error;
    try {
        auto made = std::make_unique<cm_engine>(*model, *cache, threads, max_rows, max_context);
        return finish(std::move(made), engine);
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "%d threads could not be started: %s", threads, error.what());
    }
}

cm::ExpertNets::ExpertNets(const cm_expert_sizes& sizes)
    : gate_up{2 * sizes.width, sizes.hidden, 1, sizes.form, nullptr, nullptr},
      down{sizes.hidden, sizes.width, 1, sizes.form, nullptr, nullptr},
      blocks(static_cast<size_t>(sizes.layers)),
      model{} {
    for (cm_block& block : blocks) {
        block.gate.out_features = sizes.experts;
        block.expert_gate_up = &gate_up;
        block.expert_down = &down;
        block.gate_up.out_features = 2 * sizes.shared_width;  // for the width of the workspace
    }
    model.form = sizes.form;
    model.hidden = sizes.hidden;
    model.layers = sizes.layers;
    model.experts = sizes.experts;
    model.top_k = sizes.top_k;
    model.bf16_results = sizes.bf16_results;
    model.gate_alpha = sizes.gate_alpha;
    model.gate_limit = sizes.gate_limit;
    model.blocks = blocks.data();
}

int32_t cm_experts_new(const cm_expert_sizes* sizes, int32_t threads, int32_t max_rows, cm_engine** engine) {
    *engine = nullptr;
    constexpr int32_t kMost = 1 << 20;
    const auto some = [](int32_t number) { return number > 0 && number <= kMost; };
    if (!some(sizes->hidden) || !some(sizes->width) || sizes->shared_width < 0 || sizes->shared_width > kMost ||
        !some(sizes->layers) || !some(sizes->experts) ||
        sizes->top_k < 1 || sizes->top_k > sizes->experts || sizes->top_k > static_cast<int32_t>(cm::ub::kMostChoices) ||
        (sizes->form != CM_F32 && sizes->form != CM_BF16) || threads < 1 || threads > 1024 || !some(max_rows))
        return cm::fail(CM_BAD_ARGUMENT, "%d of %d experts of %d x %d in %d layers, on %d threads, %d rows at once",
                        sizes->top_k, sizes->experts, sizes->hidden, sizes->width, sizes->layers, threads, max_rows);
    try {
        auto nets = std::make_unique<cm::ExpertNets>(*sizes);
        auto made = std::make_unique<cm_engine>(nets->model, cm_cache{}, threads, max_rows, 1);
        made->nets = std::move(nets);
        return finish(std::move(made), engine);
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "%d threads could not be started: %s", threads, error.what());
    }
}

void cm_engine_free(cm_engine* engine) { delete engine; }

void cm_engine_use_grammars(cm_engine* engine, const cm_grammar_functions* functions) { engine->grammar = *functions; }

int32_t cm_step(cm_engine* engine, const cm_batch* batch, const cm_answer* answer) {
    if (engine->nets) return cm::fail(CM_BAD_ARGUMENT, "an engine with experts only takes no steps");
    if (const int32_t error = cm::check_batch(*engine, *batch, *answer)) return error;
    if (batch->sequences == 0) return CM_OK;
    if (engine->group) return cm::step_with_peers(*engine, *batch, *answer);
    engine->team.open();
    const int32_t result = engine->kernels.step(*engine, *batch, *answer);
    engine->team.close();
    return result;
}
