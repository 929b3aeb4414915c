// Memory layout of a product's weights, the same for every instruction set.
//
// A panel holds 32 output features of one group, [padded_in / g][32][g] with g adjacent numbers of the inner dimension,
// as many as the instructions process at once (F32: 1, BF16: 2, INT8: 4). So 128 bytes are one step of a product, and
// AMX processes sixteen steps as two tiles. Padding is zero. Parts, each at a multiple of 64 bytes:
//
//     panels   [groups][panels of a group][padded_in / g][32][g]
//     scales   [groups][panels of a group][32] float32                        INT8 and W8A16
//     sums     [groups][panels of a group][32] int32: 128 * sum of a column   INT8 and W8A16, for unsigned activations
//     inputs   [groups][padded_in] float32, scales of the inner dimension     W8A16 only
//
// Panels of BF16_SHORT differ, see short_bf16.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "interface.h"
#include "short_bf16.h"

namespace cm {

// All functions are static: this file is compiled for several instruction sets, and the linker must not merge their
// code.

constexpr int kPanel = 32;
constexpr int kStepBytes = 128;
constexpr int kInnerMultiple = 64;

static constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// W8A16 splits each activation into two digits, 256 * high + low, each a row of an INT8 product. With at most this many
// inputs, sums of whole activations fit into 32 bits.
constexpr int kMostW8A16Inputs = 512;
constexpr int kDigitRange = 127 * 256 + 127;
static constexpr int digits(int form) { return form == CM_W8A16 ? 2 : 1; }
// Forms of the activations for such weights, and of the panels that kernels read.
static constexpr int plain_form(int form) { return form == CM_BF16_SHORT ? CM_BF16 : form; }
static constexpr bool has_int8_weights(int form) { return form == CM_INT8 || form == CM_W8A16; }

// Number of adjacent values of the inner dimension.
static constexpr int side_by_side(int form) { return form == CM_F32 ? 1 : plain_form(form) == CM_BF16 ? 2 : 4; }
static constexpr int bytes_of(int form) { return 4 / side_by_side(form); }

static inline int panels(const cm_linear& w) { return (w.out_features + kPanel - 1) / kPanel; }
static inline int padded_in(const cm_linear& w) { return static_cast<int>(round_up(w.in_features, kInnerMultiple)); }
static inline int steps(const cm_linear& w) { return padded_in(w) / side_by_side(w.form); }
static inline int64_t panel_bytes(const cm_linear& w) {
    return w.form == CM_BF16_SHORT ? short_panel_bytes(padded_in(w)) : static_cast<int64_t>(steps(w)) * kStepBytes;
}
static inline int64_t columns(const cm_linear& w) { return static_cast<int64_t>(w.groups) * panels(w) * kPanel; }

static inline const char* panel_at(const cm_linear& w, int group, int panel) {
    return static_cast<const char*>(w.packed) + (static_cast<int64_t>(group) * panels(w) + panel) * panel_bytes(w);
}
static inline const float* scales_at(const cm_linear& w, int group, int panel) {
    return reinterpret_cast<const float*>(panel_at(w, w.groups, 0)) + (static_cast<int64_t>(group) * panels(w) + panel) * kPanel;
}
static inline const int32_t* sums_at(const cm_linear& w, int group, int panel) {
    return reinterpret_cast<const int32_t*>(scales_at(w, group, panel) + columns(w));
}
static inline const float* input_scales_at(const cm_linear& w, int group) {
    return reinterpret_cast<const float*>(sums_at(w, 0, 0) + columns(w)) + static_cast<int64_t>(group) * padded_in(w);
}
static inline int64_t packed_bytes(const cm_linear& w) {
    const int64_t weights = columns(w) / kPanel * panel_bytes(w);
    const int64_t outputs = has_int8_weights(w.form) ? columns(w) : 0;
    const int64_t inputs = w.form == CM_W8A16 ? static_cast<int64_t>(w.groups) * padded_in(w) : 0;
    const auto output = static_cast<int64_t>(sizeof(float) + sizeof(int32_t)), input = static_cast<int64_t>(sizeof(float));
    return weights + outputs * output + inputs * input;
}

// Scratch memory for cm_apply: rows in the weights' form, then their scales.
static inline int64_t apply_scratch_bytes(const cm_linear& w, int64_t rows) {
    const int64_t numbers = rows * w.groups * digits(w.form) * padded_in(w);
    return round_up(numbers * bytes_of(w.form), 64) + rows * w.groups * static_cast<int64_t>(sizeof(float));
}

// weight [groups * out_features, in_features] dense -> packed; see cm_pack. False: it has no short form.
bool pack(const void* weight, const float* scale, const cm_linear& shape, void* packed);

}  // namespace cm
