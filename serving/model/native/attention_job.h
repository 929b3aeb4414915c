// What attention is asked: some rows of queries, each against the part of the cache that it may see.
#pragma once
#include "arena.h"
#include "cache_row.h"
#include "gemm.h"
#include "team.h"

namespace cm::CM_ISA_NAMESPACE {

// Consecutive tokens of one sequence: rows first_row ... first_row + rows - 1 stand at positions start, start + 1, ...
// and see everything up to themselves, or the last of it where the layer has a window. `plain`: latents of the context
// are worth expanding to keys and values per head.
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
    int layer;  // of the cache; the rows of all spans have been written
    const Span* spans;
    int count;
    const T* query;  // [rows][heads][nope + rope], rotated
    int64_t query_stride;
    T* out;  // [rows][heads * value]
    int64_t out_stride;
};

// Numbers of one head's query.
inline int query_dim(const cm_model& model) { return model.nope_dim + model.rope_dim; }

// Runs of `part` that cover `whole`.
constexpr int parts(int whole, int part) { return (whole + part - 1) / part; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Rows of every head in the form that a product wants: T, and also INT8, or two digits of it, with a scale each, for
// weights that are INT8. Their pads are zero. [heads][rows][stride]
template <class T>
struct HeadRows {
    T* data;
    int8_t* bytes;  // room for two digits
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

    // To be called when a row's numbers stand: zeroes the pad, and quantises for such a weight.
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
