// Positions and block tables of rows, and the cosines and sines that rotate their pairs.
#pragma once
#include <cmath>
#include <cstring>

#include "isa.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

// The angle is rounded to float32 before its cosine is computed, as in rope.py.
template <class T>
inline void place_row(const cm_model& m, const Workspace<T>& w, int row, int position, const int32_t* table) {
    const int pairs = m.rope_dim / 2;
    float *cosine = w.cosine + static_cast<int64_t>(row) * pairs, *sine = w.sine + static_cast<int64_t>(row) * pairs;
    w.position[row] = position;
    w.table[row] = table;
    for (int pair = 0; pair < pairs; ++pair) {
        const float angle = static_cast<float>(position) * m.rope_frequencies[pair];
        cosine[pair] = m.rope_amplitude * std::cos(angle);
        sine[pair] = m.rope_amplitude * std::sin(angle);
    }
}

// Copies row `from` to `to`, which is before it or the same.
template <class T>
inline void move_place(const cm_model& m, const Workspace<T>& w, int from, int to) {
    if (from == to) return;
    const int64_t pairs = m.rope_dim / 2;
    w.position[to] = w.position[from];
    w.table[to] = w.table[from];
    std::memcpy(w.cosine + to * pairs, w.cosine + from * pairs, sizeof(float) * static_cast<size_t>(pairs));
    std::memcpy(w.sine + to * pairs, w.sine + from * pairs, sizeof(float) * static_cast<size_t>(pairs));
}

}  // namespace cm::CM_ISA_NAMESPACE
