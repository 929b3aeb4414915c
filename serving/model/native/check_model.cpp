#include <cstdint>

#include "check.h"
#include "engine.h"
#include "error.h"
#include "pack.h"

namespace cm {
namespace {

// A product's shape as required by the model's sizes. Weights are of the activations' form, short or not, or INT8;
// `form` -1 = any of these. Those that expand latents, or are absorbed, may be W8A16.
int32_t check_linear(const cm_model& m, const cm_linear& w, const char* name, int out, int in, int groups,
                     int form = -1, bool w8a16 = false) {
    if (w.out_features != out || w.in_features != in || w.groups != groups) {
        return fail(CM_BAD_ARGUMENT, "%s is %d x %d in %d groups, not %d x %d in %d", name, w.out_features,
                    w.in_features, w.groups, out, in, groups);
    }
    const bool shorter = w.form == CM_BF16_SHORT && in <= kMostShortInputs;
    const bool own = w.form == m.form || (shorter && m.form == CM_BF16);
    const bool known = form < 0 ? own || w.form == CM_INT8 : w.form == form;
    if (!known && !(w8a16 && w.form == CM_W8A16 && in <= kMostW8A16Inputs))
        return fail(CM_BAD_ARGUMENT, "%s has weights of form %d, which this model cannot use", name, w.form);
    if (w.packed == nullptr) return fail(CM_BAD_ARGUMENT, "%s has no weights", name);
    return CM_OK;
}

// gate_up and down of one feed-forward network, of any width.
int32_t check_net(const cm_model& m, const cm_linear& gate_up, const cm_linear& down, const char* name) {
    if (gate_up.out_features < 2 || gate_up.out_features % 2) {
        return fail(CM_BAD_ARGUMENT, "%s.gate_up has %d outputs: an even number, gate and up", name,
                    gate_up.out_features);
    }
    if (const int32_t error = check_linear(m, gate_up, name, gate_up.out_features, m.hidden, 1)) return error;
    return check_linear(m, down, name, m.hidden, gate_up.out_features / 2, 1);
}

// Queries, keys and values are outputs of one product.
int32_t check_grouped(const cm_model& m, const cm_block& b) {
    const int queries = m.heads * m.head_dim;
    int32_t error = check_linear(m, b.into, "into", queries + 2 * m.kv_heads * m.head_dim, m.hidden, 1);
    if (!error) error = check_linear(m, b.out, "out", m.hidden, queries, 1);
    if (!error && !(b.attention_norm && b.feed_norm)) return fail(CM_BAD_ARGUMENT, "a norm's weights are missing");
    if (!error && b.window < 0) return fail(CM_BAD_ARGUMENT, "a window of %d tokens", b.window);
    return error;
}

int32_t check_attention(const cm_model& m, const cm_block& b) {
    if (b.kind != m.blocks->kind) {
        return fail(CM_BAD_ARGUMENT, "attention of kind %d beside that of kind %d", b.kind, m.blocks->kind);
    }
    if (b.kind == CM_GROUPED) return check_grouped(m, b);
    if (b.window || b.sinks) return fail(CM_BAD_ARGUMENT, "latent attention has no window, and no sinks");
    const int queries = m.heads * (m.nope_dim + m.rope_dim);
    const int into = (m.q_lora ? m.q_lora : queries) + m.kv_lora + m.rope_dim;
    int32_t error = check_linear(m, b.into, "into", into, m.hidden, 1);
    if (!error && m.q_lora) error = check_linear(m, b.query_up, "query_up", queries, m.q_lora, 1);
    const int expanded = m.heads * (m.nope_dim + m.value_dim);
    if (!error) error = check_linear(m, b.expand, "expand", expanded, m.kv_lora, 1, -1, true);
    if (!error) error = check_linear(m, b.key_absorb, "key_absorb", m.kv_lora, m.nope_dim, m.heads, -1, true);
    if (!error) error = check_linear(m, b.value_absorb, "value_absorb", m.value_dim, m.kv_lora, m.heads, -1, true);
    if (!error) error = check_linear(m, b.out, "out", m.hidden, m.heads * m.value_dim, 1);
    const bool norms = b.attention_norm && b.latent_norm && b.feed_norm && (!m.q_lora || b.query_norm);
    if (!error && !norms) return fail(CM_BAD_ARGUMENT, "a norm's weights are missing");
    return error;
}

int32_t check_block(const cm_model& m, const cm_block& b) {
    if (const int32_t error = check_attention(m, b)) return error;
    if (!b.gate.out_features) return check_net(m, b.gate_up, b.down, "feed");
    int32_t error = check_linear(m, b.gate, "gate", m.experts, m.hidden, 1, CM_F32);
    if (!error && b.gate_up.out_features) error = check_net(m, b.gate_up, b.down, "shared experts");
    if (!error && (!b.expert_gate_up || !b.expert_down))
        return fail(CM_BAD_ARGUMENT, "the experts' weights are missing");
    for (int expert = 0; !error && expert < m.experts; ++expert) {
        error = check_net(m, b.expert_gate_up[expert], b.expert_down[expert], "expert");
        if (!error && b.expert_gate_up[expert].out_features != b.expert_gate_up[0].out_features) {
            return fail(CM_BAD_ARGUMENT, "expert %d has another width than expert 0", expert);
        }
        if (!error && plain_form(b.expert_gate_up[expert].form) != plain_form(b.expert_gate_up[0].form)) {
            return fail(CM_BAD_ARGUMENT, "expert %d has weights of another form than expert 0", expert);
        }
        if (!error && plain_form(b.expert_down[expert].form) != plain_form(b.expert_down[0].form)) {
            return fail(CM_BAD_ARGUMENT, "expert %d has weights of another form than expert 0", expert);
        }
    }
    return error;
}

// Pairs that rotate together are adjacent and must not be in two panels, so no width may be odd.
int32_t check_latents(const cm_model& m) {
    if (m.blocks->kind != CM_LATENT || m.kv_heads || m.head_dim) {
        return fail(CM_BAD_ARGUMENT, "attention of kind %d with %d KV heads of %d", m.blocks->kind, m.kv_heads,
                    m.head_dim);
    }
    const bool sizes = m.q_lora >= 0 && m.kv_lora > 0 && m.nope_dim > 0 && m.rope_dim > 0 && m.value_dim > 0;
    if (!sizes || m.rope_dim % 2 || m.nope_dim % 2 || m.q_lora % 2 || m.kv_lora % 2) {
        return fail(CM_BAD_ARGUMENT, "a width of the model is not positive, or is odd");
    }
    return CM_OK;
}

int32_t check_heads(const cm_model& m) {
    if (m.kv_heads < 1 || m.heads % m.kv_heads) {
        return fail(CM_BAD_ARGUMENT, "%d heads cannot share %d KV heads evenly", m.heads, m.kv_heads);
    }
    const bool sizes = m.head_dim > 0 && m.rope_dim >= 0 && m.nope_dim >= 0 && m.q_lora == 0 && m.kv_lora == 0 &&
                       m.nope_dim + m.rope_dim == m.head_dim && m.value_dim == m.head_dim;
    if (!sizes || m.rope_dim % 2 || m.nope_dim % 2) {
        return fail(CM_BAD_ARGUMENT, "heads of %d: %d that do not turn and %d that do, values of %d", m.head_dim,
                    m.nope_dim, m.rope_dim, m.value_dim);
    }
    return CM_OK;
}

int32_t check_sizes(const cm_model& m) {
    if (m.form != CM_F32 && m.form != CM_BF16) return fail(CM_BAD_ARGUMENT, "activations of form %d", m.form);
    if (!m.embed || !m.blocks || !m.norm || (!m.rope_frequencies && m.rope_dim))
        return fail(CM_BAD_ARGUMENT, "a part of the model is missing");
    const bool sizes = m.vocab > 0 && m.hidden > 0 && m.layers > 0 && m.heads > 0;
    if (!sizes) return fail(CM_BAD_ARGUMENT, "a width of the model is not positive");
    if (const int32_t error = m.blocks->kind == CM_GROUPED ? check_heads(m) : check_latents(m)) return error;
    if (m.experts == 0) return CM_OK;
    const bool groups = m.expert_groups > 0 && m.experts % m.expert_groups == 0 && m.kept_groups > 0 &&
                        m.kept_groups <= m.expert_groups;
    if (m.experts < 0 || !groups || m.top_k < 1) {
        return fail(CM_BAD_ARGUMENT, "%d experts in %d groups, %d kept", m.experts, m.expert_groups, m.kept_groups);
    }
    const int reachable = m.expert_groups > 1 ? m.experts / m.expert_groups * m.kept_groups : m.experts;
    if (!(m.gate_limit >= 0.0f))
        return fail(CM_BAD_ARGUMENT, "gates that open up to %g", static_cast<double>(m.gate_limit));
    if (m.top_k > reachable) return fail(CM_BAD_ARGUMENT, "%d experts a token of %d in reach", m.top_k, reachable);
    return CM_OK;
}

// A KV head's part of a row: its value, its key, and in INT8 a scale for each.
bool heads_fit(const cm_model& m, const cm_cache& c) {
    const int number = c.form == CM_INT8 ? 1 : bytes_of(m.form), size = m.head_dim * number;
    const bool keys = c.rope_offset >= size && c.rope_offset % number == 0;
    const bool rows = c.head_bytes % number == 0 && c.row_bytes % number == 0 &&
                      static_cast<int64_t>(c.head_bytes) * m.kv_heads <= c.row_bytes;
    if (c.form != CM_INT8) return keys && rows && c.rope_offset + size <= c.head_bytes;
    return keys && rows && c.scale_offset >= c.rope_offset + size && c.scale_offset % 4 == 0 && c.head_bytes % 4 == 0 &&
           c.row_bytes % 4 == 0 && c.scale_offset + 8 <= c.head_bytes;
}

// Each layer has a place, in one block of all layers or in one of several for the same positions.
bool places_fit(const cm_model& m, const cm_cache& c) {
    if (!c.places) return c.layers >= m.layers;
    bool fit = c.width > 0 && c.width <= CM_TABLE_WIDTH && m.draft == nullptr;
    for (int layer = 0; layer < m.layers; ++layer) {
        const int32_t *place = c.places + 2 * layer;
        fit = fit && place[0] >= 0 && place[0] < c.width && place[1] >= 0 && place[1] < c.layers;
    }
    return fit;
}

int32_t check_cache(const cm_model& m, const cm_cache& c) {
    const int number = bytes_of(m.form);
    const bool int8 = c.form == CM_INT8;
    if (c.form != m.form && !int8) return fail(CM_BAD_ARGUMENT, "a KV cache of form %d", c.form);
    const bool sizes = c.base && c.blocks > 0 && c.block_tokens > 0 && c.layers > 0 && places_fit(m, c);
    if (m.blocks->kind == CM_GROUPED) {
        return sizes && heads_fit(m, c) ? CM_OK : fail(CM_BAD_ARGUMENT, "the KV cache does not fit the model");
    }
    const int latent = m.kv_lora * (int8 ? 1 : number);
    const int rope_end = c.rope_offset + m.rope_dim * number;
    const bool row = c.rope_offset >= latent && c.rope_offset % number == 0 && rope_end <= c.row_bytes;
    const bool scale = !int8 || (c.scale_offset >= rope_end && c.scale_offset % 4 == 0 && c.row_bytes % 4 == 0 &&
                                 c.scale_offset + 4 <= c.row_bytes);
    if (!sizes || !row || !scale) return fail(CM_BAD_ARGUMENT, "the KV cache does not fit the model");
    return CM_OK;
}

}  // namespace

int32_t check_model(const cm_model& m, const cm_cache& cache) {
    int32_t error = check_sizes(m);
    if (!error) error = check_cache(m, cache);
    if (!error) error = check_linear(m, m.head, "head", m.vocab, m.hidden, 1);
    for (int layer = 0; !error && layer < m.layers; ++layer) error = check_block(m, m.blocks[layer]);
    if (error || m.draft == nullptr) return error;
    const cm_draft_layer& d = *m.draft;
    if (!d.embed || !d.token_norm || !d.hidden_norm || !d.norm)
        return fail(CM_BAD_ARGUMENT, "a part of the draft layer is missing");
    error = check_linear(m, d.fuse, "fuse", m.hidden, 2 * m.hidden, 1);
    if (!error) error = check_linear(m, d.head, "draft head", m.vocab, m.hidden, 1);
    return error ? error : check_block(m, d.block);
}

}  // namespace cm
