// Memory for the values of one step: arrays allocated from the engine's scratch memory, the same in every step.
//
// Products read whole multiples of 64 numbers of a row (against zero weights), so a row's padding must be finite. Each
// row buffer therefore keeps one width, or its writer zeroes the padding.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "attention.h"
#include "engine.h"
#include "gate.h"
#include "gemm.h"
#include "isa.h"
#include "pack.h"
#include "round.h"
#include "rows.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows to be multiplied: in the model's form, and quantised if weights are INT8.
template <class T>
struct RowBuffer {
    T* data;
    int8_t* bytes;
    float* scale;
    int64_t stride;  // numbers, of both forms

    RowBuffer() = default;
    // One more line of padding keeps rows of power-of-two widths out of each other's cache sets.
    RowBuffer(Arena& arena, int64_t rows, int width) : stride(round_up(width, kInnerMultiple) + kInnerMultiple) {
        data = arena.take<T>(rows * stride);
        bytes = arena.take<int8_t>(rows * stride);
        scale = arena.take<float>(rows);
    }

    T* row(int64_t index) const { return data + index * stride; }
    void quantise(int64_t index, int width) const {
        quantise_row(row(index), width, static_cast<int>(round_up(width, kInnerMultiple)), bytes + index * stride,
                     scale + index);
    }
    void copy(int64_t from, int64_t to) const {
        std::memcpy(static_cast<void*>(row(to)), row(from), static_cast<size_t>(stride) * sizeof(T));
        std::memcpy(bytes + to * stride, bytes + from * stride, static_cast<size_t>(stride));
        scale[to] = scale[from];
    }
    // The form for products with `w`.
    Rows rows(const cm_linear& w, int64_t first, int count) const {
        if (w.form == CM_INT8) return {bytes + first * stride, stride, scale + first, count};
        return {row(first), stride, nullptr, count};
    }
};

constexpr int kFeedColumns = 256;  // columns of its inner width
constexpr int kDrawnRows = 128;    // rows of logits at a time: bounds [rows, vocab] float32

// Memory of one thread.
template <class T>
struct ThreadSpace {
    RowBuffer<T> gathered;  // [kFeedRows, hidden]
    float* gate;            // [kFeedRows, kFeedColumns]
    T* latent;              // [kv_lora], or a value and a key of a head
    GateSpace gate_space;
    double* weights;  // [vocab]
    double* spare;    // [vocab]
    uint32_t* allowed;  // [vocab bits, and one more]
};

// The widest inner layer of dense and shared networks.
inline int widest_net(const cm_model& m) {
    int width = 0;
    for (int layer = 0; layer < m.layers + (m.draft ? 1 : 0); ++layer) {
        const cm_block& block = layer < m.layers ? m.blocks[layer] : m.draft->block;
        width = width < block.gate_up.out_features / 2 ? block.gate_up.out_features / 2 : width;
    }
    return width;
}

inline int expert_width(const cm_model& m) {
    for (int layer = 0; layer < m.layers + (m.draft ? 1 : 0); ++layer) {
        const cm_block& block = layer < m.layers ? m.blocks[layer] : m.draft->block;
        if (block.gate.out_features) return block.expert_gate_up[0].out_features / 2;
    }
    return 0;
}

template <class T>
struct Workspace {
    float* x;  // [rows, hidden], the residual stream
    int64_t x_stride;
    RowBuffer<T> normed;  // [rows, hidden]
    float* wide;          // [rows, hidden]: `normed` in float32, for gates
    RowBuffer<T> fused;   // [rows, 2 hidden], the draft layer's input
    float* query_latent;  // [rows, q_lora], or queries whose heads are normalised
    RowBuffer<T> query_rows;
    T* query;  // [rows, heads, nope + rope], rotated
    int64_t query_width;
    float* latent;  // [rows, kv_lora + rope], or keys and values of all KV heads
    int64_t latent_width;
    RowBuffer<T> attended;  // [rows, heads * value]
    RowBuffer<T> net;       // [rows, widest net]
    RowBuffer<T> inner;     // [rows * top_k, expert width, or that of shared experts of an engine with experts only]

    float *cosine, *sine;   // [rows, rope / 2]
    int32_t* position;      // [rows]
    const int32_t** table;  // [rows], block table of each row's sequence
    Span* spans;            // [rows], at most one per row

    float* gate_logits;      // [rows, experts padded to panels]
    int32_t* chosen;         // [rows, top_k]
    float* chosen_weight;    // [rows, top_k]
    int32_t* slot_row;       // [rows * top_k], grouped by expert
    float* slot_weight;      // [rows * top_k]
    int32_t* expert_offset;  // [experts + 1]
    ExpertJob* jobs;         // [rows * top_k]

    float* logits;  // [kDrawnRows, vocab]
    int64_t logits_stride;
    int32_t* drawn_row;       // [rows]
    int32_t* drawn_sequence;  // [rows]
    int32_t* drawn_token;     // [rows]
    int32_t* draft_token;     // [rows]
    int32_t* draft_row;       // [rows]
    int32_t* draft_last;      // [rows], of sequences that request draft tokens
    int32_t* draft_sequence;  // [rows]

    ThreadSpace<T>* threads;
    void* attention;
    size_t bytes;
    int half = 0, first = 0;  // of a view: its micro-batch, and its first row's number in the step

    // The part of a micro-batch: rows from `row` on. Memory that no layer keeps is shared with the others.
    Workspace from(const cm_model& m, int row, int number) const {
        Workspace view = *this;
        view.half = number;
        view.first = row;
        const auto past = [row](RowBuffer<T>& buffer) {
            buffer.data += row * buffer.stride;
            buffer.bytes += row * buffer.stride;
            buffer.scale += row;
        };
        view.x += row * x_stride;
        view.wide += row * normed.stride;
        for (RowBuffer<T>* buffer : {&view.normed, &view.query_rows, &view.attended, &view.net}) past(*buffer);
        view.query_latent += row * (m.kv_heads ? query_width : m.q_lora);
        view.query += row * query_width;
        view.latent += row * latent_width;
        view.cosine += row * (m.rope_dim / 2);
        view.sine += row * (m.rope_dim / 2);
        view.position += row;
        view.table += row;
        view.gate_logits += row * round_up(m.experts, kPanel);
        view.chosen += static_cast<int64_t>(row) * m.top_k;
        view.chosen_weight += static_cast<int64_t>(row) * m.top_k;
        return view;
    }

    Workspace(const cm_engine& engine, void* memory) {
        Arena arena(memory);
        const cm_model& m = engine.model;
        const int64_t rows = engine.max_rows;
        streams(arena, m, rows);
        expert_lists(arena, m, rows, engine.nets ? widest_net(m) : 0);
        draws(arena, m, rows);
        threads = thread_spaces(arena, m, engine.team.threads(), memory != nullptr);
        const size_t need =
            attention_scratch_bytes(m, engine.cache, engine.max_rows, engine.max_context, engine.team.threads());
        attention = arena.take<char>(static_cast<int64_t>(need));
        bytes = arena.used();
    }

  private:
    void streams(Arena& arena, const cm_model& m, int64_t rows) {
        x_stride = round_up(m.hidden, 16) + 16;
        x = arena.take<float>(rows * x_stride);
        normed = RowBuffer<T>(arena, rows, m.hidden);
        wide = arena.take<float>(rows * normed.stride);
        if (m.draft) fused = RowBuffer<T>(arena, rows, 2 * m.hidden);
        query_width = static_cast<int64_t>(m.heads) * (m.nope_dim + m.rope_dim);
        query_latent = arena.take<float>(rows * (m.kv_heads ? query_width : m.q_lora));
        query_rows = RowBuffer<T>(arena, rows, m.q_lora);
        query = arena.take<T>(rows * query_width);
        latent_width = m.kv_heads ? 2 * m.kv_heads * m.head_dim : m.kv_lora + m.rope_dim;
        latent = arena.take<float>(rows * latent_width);
        attended = RowBuffer<T>(arena, rows, m.heads * m.value_dim);
        cosine = arena.take<float>(rows * (m.rope_dim / 2));
        sine = arena.take<float>(rows * (m.rope_dim / 2));
        position = arena.take<int32_t>(rows);
        table = arena.take<const int32_t*>(rows);
        spans = arena.take<Span>(rows);
    }

    void expert_lists(Arena& arena, const cm_model& m, int64_t rows, int shared_width) {
        const int64_t slots = rows * m.top_k;
        net = RowBuffer<T>(arena, rows, widest_net(m));
        inner = RowBuffer<T>(arena, slots, expert_width(m) < shared_width ? shared_width : expert_width(m));
        gate_logits = arena.take<float>(rows * round_up(m.experts, kPanel));
        chosen = arena.take<int32_t>(slots);
        chosen_weight = arena.take<float>(slots);
        slot_row = arena.take<int32_t>(slots);
        slot_weight = arena.take<float>(slots);
        expert_offset = arena.take<int32_t>(m.experts + 1);
        jobs = arena.take<ExpertJob>(slots);
    }

    void draws(Arena& arena, const cm_model& m, int64_t rows) {
        logits_stride = round_up(m.vocab, 16);
        logits = arena.take<float>((rows < kDrawnRows ? rows : kDrawnRows) * logits_stride);
        for (int32_t** list :
             {&drawn_row, &drawn_sequence, &drawn_token, &draft_token, &draft_row, &draft_last, &draft_sequence}) {
            *list = arena.take<int32_t>(rows);
        }
    }

    static ThreadSpace<T>* thread_spaces(Arena& arena, const cm_model& m, int count, bool real) {
        ThreadSpace<T>* spaces = arena.take<ThreadSpace<T>>(count);
        for (int thread = 0; thread < count; ++thread) {
            ThreadSpace<T> space;
            space.gathered = RowBuffer<T>(arena, kFeedRows, m.hidden);
            space.gate = arena.take<float>(static_cast<int64_t>(kFeedRows) * kFeedColumns);
            space.latent = arena.take<T>(m.kv_lora + 2 * m.head_dim);
            space.gate_space = {arena.take<float>(m.experts), arena.take<float>(m.expert_groups),
                                arena.take<uint8_t>(m.experts + m.expert_groups)};
            space.weights = arena.take<double>(m.vocab);
            space.spare = arena.take<double>(m.vocab);
            space.allowed = arena.take<uint32_t>(m.vocab / 32 + 1);
            if (real) spaces[thread] = space;
        }
        return spaces;
    }
};

}  // namespace cm::CM_ISA_NAMESPACE
