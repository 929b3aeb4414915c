// One transformer block over rows of any sequences: the stages before and after attention. experts.h has the other
// half.
#pragma once
#include "attention.h"
#include "cache_row.h"
#include "experts.h"
#include "isa.h"
#include "shares.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

// Rows 0 ... rows - 1 of the workspace, sequence by sequence.
struct Pass {
    int rows;
    const Span* spans;
    int count;
    int layer;  // number in the cache
    bool settled = false;  // its rows are already in the cache and must not change
};

template <class T>
class BlockStep {
  public:
    BlockStep(cm_engine& engine, const Workspace<T>& space)
        : e_(engine), m_(engine.model), team_(engine.team), w_(space) {}

    // x -> x
    void run(const Pass& pass, const cm_block& block) {
        normalise(pass.rows, block);
        project(pass.rows, block, 0, panels(block.into));
        if (!pass.settled) keep(pass, block);
        attend_and_feed(pass, block);
    }

    // `run` in two parts, for micro-batches: up to the ask of a block with routed experts, and from there.
    void begin(const Pass& pass, const cm_block& block) {
        normalise(pass.rows, block);
        project(pass.rows, block, 0, panels(block.into));
        if (!pass.settled) keep(pass, block);
        attend_stage(pass, block);
        Feed<T> feed(e_, w_, pass.rows, block);
        if (block.gate.out_features > 0) return feed.ask();
        feed.run();
    }
    void finish(const Pass& pass, const cm_block& block) {
        if (block.gate.out_features > 0) Feed<T>(e_, w_, pass.rows, block).collect(false);
    }

    // x -> rows of the cache, and nothing else; `normed` and `x` are kept in the form that `queries` needs.
    void keep_only(const Pass& pass, const cm_block& block) {
        normalise(pass.rows, block);
        project(pass.rows, block, query_inputs() / kPanel, panels(block.into));
        keep(pass, block);
    }

    // The stages of `run` after `keep_only`, for rows that went through it.
    void rest(const Pass& pass, const cm_block& block) {
        project(pass.rows, block, 0, ceil_div(query_inputs(), kPanel));
        attend_and_feed(pass, block);
    }

  private:
    // Outputs of `into` for queries; followed by the latent and the rope key, or by keys and values.
    int query_inputs() const { return m_.q_lora ? m_.q_lora : static_cast<int>(w_.query_width); }

    // Whether they are normalised before they become queries.
    bool queries_wait(const cm_block& block) const {
        return block.kind == CM_GROUPED ? block.query_norm != nullptr : m_.q_lora > 0;
    }

    // Start of the rotated part of a head.
    int turned_from(const cm_block& block) const {
        return block.kind == CM_GROUPED && !block.rotates ? m_.head_dim : m_.nope_dim;
    }

    void normalise(int rows, const cm_block& block) {
        each_row(team_, rows, m_.hidden, [&](int row, int) {
            rms_norm(w_.x + row * w_.x_stride, block.attention_norm, m_.hidden, m_.norm_eps, w_.normed.row(row));
            if (block.into.form == CM_INT8) w_.normed.quantise(row, m_.hidden);
        });
    }

    // Panels of `into`: stores each output by its kind.
    void project(int rows, const cm_block& block, int first_panel, int last_panel) {
        const int inputs = query_inputs(), all = block.into.out_features, from = turned_from(block);
        const bool wait = queries_wait(block);
        const Rows x = w_.normed.rows(block.into, 0, rows);
        product(team_, block.into, x, first_panel, last_panel,
                [&](int first, int count, int column, const float* tile) {
                    const int end = column + kPanel < all ? column + kPanel : all;
                    const int split = inputs < column ? column : inputs < end ? inputs : end;
                    for (int r = 0; r < count; ++r, tile += kPanel) {
                        if (wait) {
                            convert_row(tile, split - column,
                                        w_.query_latent + static_cast<int64_t>(first + r) * inputs + column);
                        } else {
                            put_queries(first + r, column, split - column, tile, from);
                        }
                        convert_row(tile + (split - column), end - split,
                                    w_.latent + (first + r) * w_.latent_width + (split - inputs));
                    }
                });
    }

    // Part of one row's queries, starting at an even column; each head is rotated from number `from` on.
    void put_queries(int row, int column, int count, const float* tile, int from) {
        const int head = m_.nope_dim + m_.rope_dim;
        float turned[kPanel];
        for (int i = 0; i < count; ++i) turned[i] = tile[i];
        for (int at = column; at < column + count;) {
            const int inside = at % head, left = column + count - at;
            const int part = inside < from ? from - inside : head - inside;
            const int size = part < left ? part : left;
            if (inside >= from) {
                const int64_t pair = static_cast<int64_t>(row) * (m_.rope_dim / 2) + (inside - from) / 2;
                rotate(turned + (at - column), w_.cosine + pair, w_.sine + pair, size / 2);
            }
            at += size;
        }
        convert_row(turned, count, w_.query + row * w_.query_width + column);
    }

    // Normalise latents, rotate rope keys, and store them in the cache.
    void keep(const Pass& pass, const cm_block& block) {
        if (block.kind == CM_GROUPED) return keep_heads(pass, block);
        each_row(team_, pass.rows, m_.kv_lora + m_.rope_dim, [&](int row, int thread) {
            float* latent = w_.latent + row * w_.latent_width;
            T* rounded = w_.threads[thread].latent;
            const int64_t pair = static_cast<int64_t>(row) * (m_.rope_dim / 2);
            rms_norm(latent, block.latent_norm, m_.kv_lora, m_.latent_norm_eps, rounded);
            convert_row(rounded, m_.kv_lora, latent);
            rotate(latent + m_.kv_lora, w_.cosine + pair, w_.sine + pair, m_.rope_dim / 2);
            write_cache_row<T>(m_, e_.cache, pass.layer, w_.table[row], w_.position[row], latent, latent + m_.kv_lora);
        });
    }

    // Normalise keys if required, rotate them, and store them and the values in the cache.
    void keep_heads(const Pass& pass, const cm_block& block) {
        const int dim = m_.head_dim, from = turned_from(block);
        each_row(team_, pass.rows, 2 * m_.kv_heads * dim, [&](int row, int thread) {
            float *keys = w_.latent + row * w_.latent_width, *values = keys + m_.kv_heads * dim;
            T *value = w_.threads[thread].latent, *key = value + dim;
            char* head = cache_row(e_.cache, pass.layer, w_.table[row], w_.position[row]);
            for (int i = 0; i < m_.kv_heads; ++i, head += e_.cache.head_bytes, keys += dim, values += dim) {
                convert_row(values, dim, value);
                place_head(row, keys, block.key_norm, from, key);
                write_head(e_.cache, dim, value, key, head);
            }
        });
    }

    // One head's query or key in the form of its use: normalised, rounded to T, rotated.
    void place_head(int row, float* numbers, const float* norm, int from, T* to) {
        const int64_t pair = static_cast<int64_t>(row) * (m_.rope_dim / 2);
        if (norm) {
            rms_norm(numbers, norm, m_.head_dim, m_.norm_eps, to);
            convert_row(to, m_.head_dim, numbers);
        }
        if (from < m_.head_dim) rotate(numbers + from, w_.cosine + pair, w_.sine + pair, m_.rope_dim / 2);
        convert_row(numbers, m_.head_dim, to);
    }

    void normalise_heads(int rows, const cm_block& block) {
        const int from = turned_from(block);
        each_row(team_, rows, w_.query_width, [&](int row, int) {
            for (int64_t at = row * w_.query_width; at < (row + 1) * w_.query_width; at += m_.head_dim)
                place_head(row, w_.query_latent + at, block.query_norm, from, w_.query + at);
        });
    }

    void lift_queries(int rows, const cm_block& block) {
        if (block.kind == CM_GROUPED) return normalise_heads(rows, block);
        each_row(team_, rows, m_.q_lora, [&](int row, int) {
            const float* latent = w_.query_latent + static_cast<int64_t>(row) * m_.q_lora;
            rms_norm(latent, block.query_norm, m_.q_lora, m_.latent_norm_eps, w_.query_rows.row(row));
            if (block.query_up.form == CM_INT8) w_.query_rows.quantise(row, m_.q_lora);
        });
        const int all = block.query_up.out_features;
        product(team_, block.query_up, w_.query_rows.rows(block.query_up, 0, rows),
                [&](int first, int count, int column, const float* tile) {
                    const int size = all - column < kPanel ? all - column : kPanel;
                    for (int r = 0; r < count; ++r)
                        put_queries(first + r, column, size, tile + r * kPanel, m_.nope_dim);
                });
    }

    void attend_and_feed(const Pass& pass, const cm_block& block) {
        attend_stage(pass, block);
        Feed<T>(e_, w_, pass.rows, block).run();
    }

    void attend_stage(const Pass& pass, const cm_block& block) {
        if (queries_wait(block)) lift_queries(pass.rows, block);
        const AttentionJob<T> job{&m_,        &block,   &e_.cache,      pass.layer,       pass.spans,
                                  pass.count, w_.query, w_.query_width, w_.attended.data, w_.attended.stride};
        attend(team_, job, w_.attention);
        const int values = m_.heads * m_.value_dim;
        if (block.out.form == CM_INT8) {
            each_row(team_, pass.rows, values, [&](int row, int) { w_.attended.quantise(row, values); });
        }
        product(team_, block.out, w_.attended.rows(block.out, 0, pass.rows), AddToStream<T>{m_, w_});
    }

    cm_engine& e_;
    const cm_model& m_;
    Team& team_;
    const Workspace<T>& w_;
};

}  // namespace cm::CM_ISA_NAMESPACE
