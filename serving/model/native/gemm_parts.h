// What the kernels of all instruction sets take and give: a few rows times one panel, or two that lie behind one another.
#pragma once
#include "isa.h"
#include "pack.h"

namespace cm::CM_ISA_NAMESPACE {

template <class Form>
struct Block {
    const typename Form::Number* x;
    int64_t stride;  // from row to row of x, in numbers
    int rows;
    const char* panel;
    int panels;
    int steps;
    const char* ahead;  // memory that is wanted next: to be fetched, `ahead_step` bytes on with each step
    int ahead_step;
    int* tiles;  // what the tile registers are set up for; kept from block to block, 0 = nothing (AMX only)
    void* sums;  // [panels][rows][32] float, or int32 of INT8; at a multiple of 64
};

}  // namespace cm::CM_ISA_NAMESPACE
