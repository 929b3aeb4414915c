#include "engine.h"

#include <sys/mman.h>

#include <exception>
#include <memory>

#include "check.h"
#include "error.h"
#include "group.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

// Zeroed and untouched: pages that no step needs cost nothing. Large pages, because a step accesses all of it.
void* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
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
        made->scratch_bytes = made->kernels.scratch_bytes(*made);
        made->scratch = reserve(made->scratch_bytes);
        if (made->scratch == nullptr) {
            return cm::fail(CM_NO_MEMORY, "no %zu bytes of memory for steps of %d rows", made->scratch_bytes, max_rows);
        }
        *engine = made.release();
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "%d threads could not be started: %s", threads, error.what());
    }
    return CM_OK;
}

void cm_engine_free(cm_engine* engine) { delete engine; }

void cm_engine_use_grammars(cm_engine* engine, const cm_grammar_functions* functions) { engine->grammar = *functions; }

int32_t cm_step(cm_engine* engine, const cm_batch* batch, const cm_answer* answer) {
    if (const int32_t error = cm::check_batch(*engine, *batch, *answer)) return error;
    if (batch->sequences == 0) return CM_OK;
    if (engine->group) return cm::step_with_peers(*engine, *batch, *answer);
    engine->team.open();
    const int32_t result = engine->kernels.step(*engine, *batch, *answer);
    engine->team.close();
    return result;
}
