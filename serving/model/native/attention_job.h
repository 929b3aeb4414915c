// Input of attention: some rows of queries, each against the visible part of the cache.
#pragma once
#include "arena.h"
#include "cache_row.h"
#include "gemm.h"
#include "team.h"

namespace cm::CM_ISA_NAMESPACE {

// Consecutive tokens of one sequence: rows first_row ... first_row + rows - 1 are at positions start, start + 1, ...
// and see all positions up to their own, or the last of them if the layer has a window. `plain`: the context's latents
// are expanded to keys and values per head.
struct Span {
    int first_row, rows, start;
    const int32_t* table;
    bool plain;
};

template <class T>
struct AttentionJob {
    const cm_model* model;
    const cm_block* block;
    const cm_cache* cache;
    int layer;  // number in the cache; the rows of all spans have been written
    const Span* spans;
    int count;
    const T* query;  // [rows][heads][nope + rope], rotated
    int64_t query_stride;
    T* out;  // [rows][heads * value]
    int64_t out_stride;
};

// Numbers in one head's query.
inline int query_dim(const cm_model& model) { return model.nope_dim + model.rope_dim; }

// Number of runs of `part` that cover `whole`.
constexpr int parts(int whole, int part) { return (whole + part - 1) / part; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Rows of every head in the form that a product needs: T, and also INT8, or two digits of it, with a scale each, for
// INT8 weights. Their padding is zero. [heads][rows][stride]
template <class T>
struct HeadRows {
    T* data;
    int8_t* bytes;  // large enough for two digits
    float* scale;
    int rows, width, stride;

    HeadRows(Arena& arena, int heads, int row_count, int in_features)
        : rows(row_count), width(in_features), stride(static_cast<int>(round_up(in_features, kInnerMultiple))) {
        const int64_t all = static_cast<int64_t>(heads) * rows;
        data = arena.take<T>(all * stride);
        bytes = arena.take<int8_t>(2 * all * stride);
        scale = arena.take<float>(all);
    }

    int64_t index(int head, int row) const { return static_cast<int64_t>(head) * rows + row; }
    T* row(int head, int row) const { return data + index(head, row) * stride; }

    // Call it when a row's numbers are complete: zeroes the padding, and quantises for such a weight.
    void complete(const cm_linear& w, int head, int row_index) const {
        T* numbers = row(head, row_index);
        const int64_t i = index(head, row_index);
        clear_numbers(numbers + width, stride - width);
        if (w.form == CM_INT8) quantise_row(numbers, width, stride, bytes + i * stride, scale + i);
        if (w.form == CM_W8A16) {
            const int group = w.groups == 1 ? 0 : head;
            quantise_row_16(numbers, input_scales_at(w, group), width, stride, bytes + 2 * i * stride, scale + i);
        }
    }
    Rows of(const cm_linear& w, int head, int first_row, int count) const {
        const int64_t i = index(head, first_row);
        if (has_int8_weights(w.form)) return {bytes + digits(w.form) * i * stride, stride, scale + i, count};
        return {data + i * stride, stride, nullptr, count};
    }
};

// Stores a tile of a product as T, `columns` of its 32.
template <class T>
CM_INLINE void store_tile(const float* tile, int columns, T* to) {
    if (columns >= kPanel) {
        for (int i = 0; i < kPanel; i += kLanes) store(to + i, load(tile + i));
    } else {
        convert_row(tile, columns, to);
    }
}

}  // namespace cm::CM_ISA_NAMESPACE
