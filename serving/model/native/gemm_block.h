// Dispatches run-time numbers of rows and panels to kernels for which they are constants.
#pragma once
#include "gemm_parts.h"

namespace cm::CM_ISA_NAMESPACE {

template <class Form, int P, int R>
CM_INLINE void choose_rows(const Block<Form>& block) {
    if constexpr (R > 1) {
        if (block.rows != R) return choose_rows<Form, P, R - 1>(block);
    }
    fixed_block<Form, R, P>(block);
}

template <class Form>
CM_NOINLINE void multiply_block(const Block<Form>& block) {
    if constexpr (Form::kTiles) {
        tile_block(block);
    } else if constexpr (Form::kMaxPairedRows == 0) {
        choose_rows<Form, 1, Form::kMaxRows>(block);
    } else if (block.panels == 2) {
        choose_rows<Form, 2, Form::kMaxPairedRows>(block);
    } else {
        choose_rows<Form, 1, Form::kMaxRows>(block);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
