// Row operations and attention of one instruction set, for tests to call. Compiled with CM_ISA_NAMESPACE and its flags.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attention.h"

namespace cm::CM_ISA_NAMESPACE {
namespace {

struct Shape {
    int32_t form, heads, kv_lora, nope, rope, value, weight_form, kv_heads, head_dim;
    int32_t cache_form, blocks, layers, block_tokens, row_bytes, head_bytes, rope_offset, scale_offset;
    float scale;
    int32_t window;      // grouped
    const float* sinks;  // grouped, or null
};

struct Weight {
    const void* weight;  // [groups * out, in] of weight_form
    const float* scale;  // INT8 only
};

struct Packed {
    cm_linear linear;

    Packed(const Weight& w, int out, int in, int groups, int form) : linear{out, in, groups, form, nullptr, nullptr} {
        void* memory = std::aligned_alloc(64, static_cast<size_t>(round_up(packed_bytes(linear), 64)));
        pack(w.weight, w.scale, linear, memory);
        linear.packed = memory;
    }
    ~Packed() { std::free(const_cast<void*>(linear.packed)); }
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
};

cm_model model_of(const Shape& s, const cm_block* block) {
    cm_model model{};
    model.form = s.form;
    model.heads = s.heads;
    model.kv_lora = s.kv_lora;
    model.nope_dim = s.nope;
    model.rope_dim = s.rope;
    model.value_dim = s.value;
    model.kv_heads = s.kv_heads;
    model.head_dim = s.head_dim;
    model.softmax_scale = s.scale;
    model.layers = 1;
    model.blocks = block;
    return model;
}

cm_cache cache_of(const Shape& s, void* base) {
    return {base,        s.cache_form, s.blocks,      s.layers,      s.block_tokens,
            s.row_bytes, s.head_bytes, s.rope_offset, s.scale_offset};
}

template <class T>
void attend_as(Team& team, const cm_model& model, const cm_cache& cache, int layer, const std::vector<Span>& spans,
               const void* query, void* out, int rows, int context) {
    const size_t bytes = attention_scratch_bytes(model, cache, rows, context, team.threads());
    void* scratch = std::aligned_alloc(64, static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 64)));
    std::memset(scratch, 0xff, bytes);  // whatever it holds must not matter: NaN
    const AttentionJob<T> job{&model,
                              model.blocks,
                              &cache,
                              layer,
                              spans.data(),
                              static_cast<int>(spans.size()),
                              static_cast<const T*>(query),
                              static_cast<int64_t>(model.heads) * query_dim(model),
                              static_cast<T*>(out),
                              static_cast<int64_t>(model.heads) * model.value_dim};
    team.open();
    attend(team, job, scratch);
    team.close();
    std::free(scratch);
}

template <class T>
void write_as(const cm_model& model, const cm_cache& cache, int layer, const int32_t* table, int first, int count,
              const float* rows) {
    for (int i = 0; i < count; ++i, rows += model.kv_lora + model.rope_dim) {
        write_cache_row<T>(model, cache, layer, table, first + i, rows, rows + model.kv_lora);
    }
}

// rows: [count][KV heads][value ++ key]
template <class T>
void write_heads_as(const cm_model& model, const cm_cache& cache, int layer, const int32_t* table, int first, int count,
                    const float* rows) {
    const int dim = model.head_dim;
    std::vector<T> numbers(static_cast<size_t>(2 * dim));
    for (int i = 0; i < count * model.kv_heads; ++i, rows += 2 * dim) {
        convert_row(rows, 2 * dim, numbers.data());
        char* row = cache_row(cache, layer, table, first + i / model.kv_heads);
        write_head(cache, dim, numbers.data(), numbers.data() + dim, row + i % model.kv_heads * cache.head_bytes);
    }
}

std::vector<Span> spans_of(const int32_t* spans, int count, const int32_t* tables) {
    std::vector<Span> list;
    for (const int32_t* p = spans; p < spans + count * 5; p += 5)
        list.push_back({p[0], p[1], p[2], tables + p[3], p[4] != 0});
    return list;
}

void attend_all(const Shape& s, const cm_block& block, void* base, int layer, const std::vector<Span>& spans,
                const void* query, void* out, int threads) {
    const cm_model model = model_of(s, &block);
    const cm_cache cache = cache_of(s, base);
    int rows = 0, context = 0;
    for (const Span& span : spans) {
        rows += span.rows;
        context = larger(context, span.rows + span.start);
    }
    Team team(threads);
    if (s.form == CM_BF16) return attend_as<bf16>(team, model, cache, layer, spans, query, out, rows, context);
    attend_as<float>(team, model, cache, layer, spans, query, out, rows, context);
}

}  // namespace
}  // namespace cm::CM_ISA_NAMESPACE

using namespace cm;
using namespace cm::CM_ISA_NAMESPACE;

extern "C" {

int32_t test_lanes() { return kLanes; }

void test_exp(const float* x, int32_t n, float* y) {
    each_vec(n, [&](int i, int lanes) { store_up_to(y + i, CM_ISA_NAMESPACE::exp(load_up_to(x + i, lanes)), lanes); });
}

void test_to_bf16(const float* x, int32_t n, uint16_t* y) { convert_row(x, n, reinterpret_cast<bf16*>(y)); }
void test_from_bf16(const uint16_t* x, int32_t n, float* y) { convert_row(reinterpret_cast<const bf16*>(x), n, y); }

void test_rms_norm(const float* x, const float* weight, int32_t n, float eps, int32_t form, void* out) {
    if (form == CM_BF16) return rms_norm(x, weight, n, eps, static_cast<bf16*>(out));
    rms_norm(x, weight, n, eps, static_cast<float*>(out));
}

void test_quantise_row(const void* x, int32_t n, int32_t padded, int32_t form, int8_t* out, float* scale) {
    if (form == CM_BF16) return quantise_row(static_cast<const bf16*>(x), n, padded, out, scale);
    quantise_row(static_cast<const float*>(x), n, padded, out, scale);
}

void test_rotate(void* x, const float* cosines, const float* sines, int32_t pairs, int32_t form) {
    if (form == CM_BF16) return rotate(static_cast<bf16*>(x), cosines, sines, pairs);
    rotate(static_cast<float*>(x), cosines, sines, pairs);
}

void test_swiglu(const float* gate, const float* up, int32_t n, int32_t form, void* out) {
    if (form == CM_BF16) return swiglu(gate, up, n, static_cast<bf16*>(out));
    swiglu(gate, up, n, static_cast<float*>(out));
}

void test_clamped_swiglu(const float* gate, const float* up, int32_t n, float alpha, float limit, int32_t form, void* out) {
    if (form == CM_BF16) return clamped_swiglu(gate, up, n, {alpha, limit}, static_cast<bf16*>(out));
    clamped_swiglu(gate, up, n, {alpha, limit}, static_cast<float*>(out));
}

void test_add_scaled(float* x, float factor, const float* y, int32_t n) { add_scaled_into(x, factor, y, n); }

void test_write(const Shape* shape, void* base, int32_t layer, const int32_t* table, int32_t first, int32_t count,
                const float* rows) {
    const cm_model model = model_of(*shape, nullptr);
    const cm_cache cache = cache_of(*shape, base);
    if (shape->form == CM_BF16) return write_as<bf16>(model, cache, layer, table, first, count, rows);
    write_as<float>(model, cache, layer, table, first, count, rows);
}

void test_write_heads(const Shape* shape, void* base, int32_t layer, const int32_t* table, int32_t first, int32_t count,
                      const float* rows) {
    const cm_model model = model_of(*shape, nullptr);
    const cm_cache cache = cache_of(*shape, base);
    if (shape->form == CM_BF16) return write_heads_as<bf16>(model, cache, layer, table, first, count, rows);
    write_heads_as<float>(model, cache, layer, table, first, count, rows);
}

// spans: [count][5] first row, rows, start, where its table begins in `tables`, plain.
void test_attend(const Shape* shape, const Weight* weights, void* base, int32_t layer, const int32_t* spans,
                 int32_t count, const int32_t* tables, const void* query, void* out, int32_t threads) {
    const Shape& s = *shape;
    const Packed expand(weights[0], s.heads * (s.nope + s.value), s.kv_lora, 1, s.weight_form);
    const Packed key(weights[1], s.kv_lora, s.nope, s.heads, s.weight_form);
    const Packed value(weights[2], s.value, s.kv_lora, s.heads, s.weight_form);
    cm_block block{};
    block.expand = expand.linear;
    block.key_absorb = key.linear;
    block.value_absorb = value.linear;
    attend_all(s, block, base, layer, spans_of(spans, count, tables), query, out, threads);
}

void test_attend_grouped(const Shape* shape, void* base, int32_t layer, const int32_t* spans, int32_t count,
                         const int32_t* tables, const void* query, void* out, int32_t threads) {
    cm_block block{};
    block.kind = CM_GROUPED, block.window = shape->window, block.sinks = shape->sinks;
    attend_all(*shape, block, base, layer, spans_of(spans, count, tables), query, out, threads);
}
}
