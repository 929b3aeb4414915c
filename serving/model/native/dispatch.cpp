// Selects the instruction set, once, by processor and operating system; also contains the functions outside of a step.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "engine.h"
#include "error.h"
#include "processor.h"
#include "pack.h"

#define CM_EXPORT __attribute__((visibility("default")))

namespace cm {
namespace {

struct Choice {
    const Kernels* kernels;
    bool usable;
};

// Best first.
std::vector<Choice> choices() {
    return {{amx_kernels(), has_amx()}, {avx512_kernels(), has_avx512()}, {avx2_kernels(), has_avx2()}, {portable_kernels(), true}};
}

const Kernels* best() {
    for (const Choice& choice : choices())
        if (choice.kernels != nullptr && choice.usable) return choice.kernels;
    return portable_kernels();
}

std::atomic<const Kernels*>& in_use() {
    static std::atomic<const Kernels*> found{best()};
    return found;
}

int32_t check_product(const cm_linear& w) {
    const bool sizes = w.out_features > 0 && w.in_features > 0 && w.groups > 0;
    const bool w8a16 = w.form == CM_W8A16 && w.in_features <= kMostW8A16Inputs;
    const bool shortened = w.form == CM_BF16_SHORT && w.in_features <= kMostShortInputs;
    if (sizes && (w8a16 || shortened || (w.form >= CM_F32 && w.form <= CM_INT8))) return CM_OK;
    return fail(CM_BAD_ARGUMENT, "a product of %d x %d in %d groups of form %d", w.out_features, w.in_features, w.groups, w.form);
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

constexpr int64_t kLine = 64, kHugePage = 2 << 20;

Memory reserve(int64_t bytes, int64_t alignment) {
    Memory memory(std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(round_up(bytes, alignment))));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

// Threads that wait for cm_apply; a caller that finds them busy computes alone.
struct Waiting {
    std::mutex mutex;
    std::unique_ptr<Team> team;
    pid_t process = 0;
};

Waiting& waiting() {
    static Waiting& found = *new Waiting;  // never destroyed: a thread may compute during the process's exit
    return found;
}

void apply_with(Team& team, const Application& application) {
    team.open();
    kernels().apply(team, application);
    team.close();
}

void apply(const Application& application, int threads) {
    Waiting& shared = waiting();
    std::unique_lock<std::mutex> lock(shared.mutex, std::try_to_lock);
    if (threads == 1 || !lock.owns_lock()) {
        Team alone(1);
        return apply_with(alone, application);
    }
    if (shared.process != getpid()) {
        shared.process = getpid();
        (void)shared.team.release();  // this process was forked: its threads exist in the parent only
    }
    if (shared.team == nullptr || shared.team->threads() != threads) shared.team = std::make_unique<Team>(threads);
    apply_with(*shared.team, application);
}

}  // namespace

const Kernels& kernels() { return *in_use().load(); }

}  // namespace cm

int32_t cm_interface(void) { return CM_INTERFACE; }

const char* cm_instructions(void) { return cm::kernels().name; }

int32_t cm_short_weights_pay(void) {
    const cm::Kernels* used = &cm::kernels();
    return used == cm::amx_kernels() || (used == cm::avx512_kernels() && cm::is_zen5());
}

// For layout.py: bytes of a struct of interface.h, 0 for an unknown one.
extern "C" CM_EXPORT int64_t cm_size_of(const char* name) {
    const std::pair<const char*, size_t> sizes[] = {
        {"cm_linear", sizeof(cm_linear)},           {"cm_block", sizeof(cm_block)}, {"cm_model", sizeof(cm_model)},
        {"cm_draft_layer", sizeof(cm_draft_layer)}, {"cm_cache", sizeof(cm_cache)}, {"cm_batch", sizeof(cm_batch)},
        {"cm_sequence", sizeof(cm_sequence)},       {"cm_answer", sizeof(cm_answer)},
        {"cm_matcher", sizeof(cm_matcher)},         {"cm_grammar_functions", sizeof(cm_grammar_functions)},
        {"cm_window_shape", sizeof(cm_window_shape)}, {"cm_group_place", sizeof(cm_group_place)},
        {"cm_expert_sizes", sizeof(cm_expert_sizes)}};
    for (const auto& [known, size] : sizes)
        if (std::strcmp(known, name) == 0) return static_cast<int64_t>(size);
    return 0;
}

// For tests: use the named set from now on, if it is compiled in and the processor has it.
extern "C" CM_EXPORT int32_t cm_use_instructions(const char* name) {
    for (const cm::Choice& choice : cm::choices()) {
        if (choice.kernels == nullptr || !choice.usable || std::strcmp(choice.kernels->name, name) != 0) continue;
        cm::in_use().store(choice.kernels);
        return CM_OK;
    }
    return cm::fail(CM_BAD_ARGUMENT, "the instructions %s are not to be had here", name);
}

int64_t cm_packed_bytes(int32_t out_features, int32_t in_features, int32_t groups, int32_t form) {
    return cm::packed_bytes(cm_linear{out_features, in_features, groups, form, nullptr, nullptr});
}

int32_t cm_pack(const void* weight, const float* scale, int32_t out_features, int32_t in_features, int32_t groups,
                int32_t form, void* packed) {
    const cm_linear shape{out_features, in_features, groups, form, nullptr, nullptr};
    if (const int32_t error = cm::check_product(shape)) return error;
    if (cm::has_int8_weights(form) && scale == nullptr) {
        return cm::fail(CM_BAD_ARGUMENT, "INT8 weights need their scales");
    }
    try {
        if (cm::pack(weight, scale, shape, packed)) return CM_OK;
    } catch (const std::bad_alloc&) {
        return cm::fail(CM_NO_MEMORY, "no memory to pack a product of %d inputs", in_features);
    }
    return cm::fail(CM_NO_SHORT_FORM, "the exponents of a product of %d x %d are too many", out_features, in_features);
}

int32_t cm_apply(const cm_linear* linear, const void* x, int32_t rows, int32_t form, void* y, int32_t threads) {
    if (const int32_t error = cm::check_product(*linear)) return error;
    if (rows < 0 || threads < 1 || threads > 1024 || (form != CM_F32 && form != CM_BF16)) {
        return cm::fail(CM_BAD_ARGUMENT, "a product of %d rows of form %d on %d threads", rows, form, threads);
    }
    if (rows == 0) return CM_OK;
    try {
        const cm::Memory scratch = cm::reserve(cm::apply_scratch_bytes(*linear, rows), cm::kLine);
        cm::apply({*linear, x, rows, form, y, static_cast<char*>(scratch.get())}, threads);
    } catch (const std::exception& error) {
        return cm::fail(CM_NO_MEMORY, "no memory or threads for a product of %d rows: %s", rows, error.what());
    }
    return CM_OK;
}
