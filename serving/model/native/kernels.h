// One instruction set's entry points; isa_<name>.cpp makes each table, dispatch.cpp selects one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace cm {

class Team;

// One product for cm_apply. `scratch` holds `apply_scratch_bytes` of pack.h.
struct Application {
    const cm_linear& linear;
    const void* x;
    int rows;
    int form;
    void* y;
    char* scratch;
};

struct Kernels {
    const char* name;
    void (*apply)(Team& team, const Application& application);
    size_t (*scratch_bytes)(const cm_engine& engine);
    int32_t (*step)(cm_engine& engine, const cm_batch& batch, const cm_answer& answer);
    void (*serve)(cm_engine& engine);  // compute the rows of all peers that have asked
};

// Null if the compiler did not support the instructions.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();

// The best that this processor supports, or the one selected with cm_use_instructions.
const Kernels& kernels();

}  // namespace cm
