// Input and output of the kernels of all instruction sets: a few rows times one panel, or two consecutive ones.
#pragma once
#include "isa.h"
#include "pack.h"
#include "restore.h"

namespace cm::CM_ISA_NAMESPACE {

// Memory to prefetch step by step: first `at`, after `turn` steps `then`.
struct Ahead {
    const char* at;
    int step;  // bytes per step
    int turn;
    const char* then;

    // The memory to fetch during the next `steps`, one of which may be the last before the turn.
    CM_INLINE const char* pass(int steps) {
        const char* from = at;
        turn -= steps;
        at = turn == 0 ? then : at + steps * step;
        return from;
    }
};

template <class Form>
struct Block {
    const typename Form::Number* x;
    int64_t stride;  // from row to row of x, in numbers
    int rows;
    const char* panel;
    int panels;
    int steps;
    Ahead ahead;  // of the first panel; that of a second one is one panel further
    int* tiles;  // current configuration of the tile registers; kept from block to block, 0 = none (AMX only)
    void* sums;  // [panels][rows][32] float, or int32 for INT8; at a multiple of 64
};

// As Form, with panels as in short_bf16.h. In vectors one at a time: a pair, restored alternately, makes two streams of
// memory and is a fifth slower (Zen 5, batch 1).
template <class Form>
struct Short : Form {
    static constexpr int kMaxPairedRows = Form::kTiles ? Form::kMaxPairedRows : 0;
};

template <class Form>
constexpr bool is_short = false;
template <class Form>
constexpr bool is_short<Short<Form>> = true;

// Source of a kernel's weights: steps() at a time, either all of them or the restored part.
template <class Form, int P>
class Weights {
  public:
    CM_INLINE explicit Weights(const Block<Form>& b) : b_(b) {}
    int steps() const { return b_.steps; }
    CM_INLINE const char* next(int panel) { return b_.panel + panel * static_cast<int64_t>(b_.steps) * kStepBytes; }

  private:
    const Block<Form>& b_;
};

template <class Form, int P>
class Weights<Short<Form>, P> {
  public:
    CM_INLINE explicit Weights(const Block<Short<Form>>& b) {
        const int64_t bytes = short_panel_bytes(2 * b.steps);
        for (int p = 0; p < P; ++p) panels_[p] = Restoring(b.panel + p * bytes, 2 * b.steps, b.ahead.then + p * bytes);
    }
    int steps() const { return kSteps; }
    CM_INLINE const char* next(int panel) {
        panels_[panel].next(kSteps / 2, restored_[panel]);
        return restored_[panel];
    }

  private:
    static constexpr int kSteps = 16;
    Restoring panels_[P];
    alignas(64) char restored_[P][kSteps * kStepBytes];
};

}  // namespace cm::CM_ISA_NAMESPACE
