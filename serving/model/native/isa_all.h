// Everything that is compiled once per instruction set, and the table of its entry points.
#pragma once
#include "apply.h"
#include "step.h"

namespace cm::CM_ISA_NAMESPACE {

static const Kernels* table() {
    static constexpr Kernels found = {CM_ISA_NAME, apply, scratch_bytes, step, serve};
    return &found;
}

}  // namespace cm::CM_ISA_NAMESPACE
