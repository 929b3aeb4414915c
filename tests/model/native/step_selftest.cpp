// Whole steps under the sanitizers: random models of odd sizes through the plain interface, every buffer exactly as
// long as the interface says, on every instruction set that is there. Sequences get the same tokens and guesses
// together as each one alone. Ends with 0 and the number of steps.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "interface.h"

extern "C" int32_t cm_use_instructions(const char* name);

namespace {

std::mt19937 random_bits(7);

int below(int end) { return static_cast<int>(random_bits() % static_cast<unsigned>(end)); }
float any() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(random_bits); }

[[noreturn]] void fail(const char* text) {
    std::printf("failed on %s: %s\n", cm_instructions(), text);
    std::exit(1);
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory lines(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes ? bytes : 1) != 0) std::abort();
    return Memory(memory);
}

bool is_int8(int form) { return form == CM_INT8 || form == CM_W8A16; }

void put(float value, int form, void* to, size_t at) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (form == CM_F32) static_cast<float*>(to)[at] = value;
    if (form == CM_BF16)
        static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (is_int8(form)) static_cast<int8_t*>(to)[at] = static_cast<int8_t>(std::lround(value * 127));
}

size_t size_of(int form) { return form == CM_F32 ? 4 : form == CM_BF16 ? 2 : 1; }

// A random model; everything that its structs point to belongs to it.
class Model {
  public:
    Model() {
        m_.form = below(2) ? CM_F32 : CM_BF16;
        weights_ = below(3) ? m_.form : CM_INT8;
        m_.vocab = 40 + below(60), m_.hidden = 2 * (10 + below(40)), m_.layers = 1 + below(2), m_.heads = 1 + below(5);
        if (below(2)) {
            latent_sizes();
        } else {
            head_sizes();
        }
        m_.experts = 12, m_.top_k = 1 + below(3), m_.expert_groups = below(2) ? 1 : 4,
        m_.kept_groups = m_.expert_groups == 1 ? 1 : 2;
        m_.sigmoid_scores = below(2), m_.normalise_weights = below(2), m_.bf16_results = below(2), m_.routed_scaling = 1.5f;
        if (below(2)) m_.gate_alpha = 1.7f, m_.gate_limit = 0.5f;
        m_.norm_eps = m_.latent_norm_eps = 1e-6f, m_.rope_amplitude = 1.0f;
        m_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(m_.nope_dim + m_.rope_dim));
        m_.rope_frequencies = floats(m_.rope_dim / 2), m_.norm = floats(m_.hidden);
        m_.embed = numbers(static_cast<size_t>(m_.vocab) * m_.hidden, m_.form, 1.0f);
        m_.head = linear(m_.vocab, m_.hidden);
        for (int layer = 0; layer < m_.layers; ++layer) blocks_.push_back(block(below(3) > 0));
        m_.blocks = blocks_.data();
        draft_ = {m_.embed,
                  floats(m_.hidden),
                  floats(m_.hidden),
                  linear(m_.hidden, 2 * m_.hidden),
                  block(true),
                  floats(m_.hidden),
                  m_.head};
        m_.draft = &draft_;
    }
    const cm_model& get() const { return m_; }

  private:
    void latent_sizes() {
        m_.q_lora = below(3) ? 2 * (5 + below(20)) : 0, m_.kv_lora = 2 * (6 + below(30));
        m_.nope_dim = 2 * (1 + below(12)), m_.rope_dim = 2 * (1 + below(6)), m_.value_dim = 1 + below(20);
    }
    void head_sizes() {
        m_.kv_heads = 1 + below(3), m_.heads = m_.kv_heads * (1 + below(4));
        m_.head_dim = m_.value_dim = below(2) ? 32 : 2 * (1 + below(25));
        m_.rope_dim = below(2) ? m_.head_dim : 2 * below(m_.head_dim / 2 + 1), m_.nope_dim = m_.head_dim - m_.rope_dim;
        head_norms_ = below(2);
    }

    void* keep(Memory memory) {
        kept_.push_back(std::move(memory));
        return kept_.back().get();
    }
    void* numbers(size_t count, int form, float scale) {
        void* memory = keep(lines(count * size_of(form)));
        for (size_t i = 0; i < count; ++i) put(any() * scale, form, memory, i);
        return memory;
    }
    const float* floats(int count) {
        return static_cast<const float*>(numbers(static_cast<size_t>(count), CM_F32, 1.0f));
    }

    cm_linear linear(int out, int in, int groups = 1, int form = -1) {
        form = form < 0 ? weights_ : form;
        const size_t rows = static_cast<size_t>(groups) * out;
        const float scale = 2.0f / std::sqrt(static_cast<float>(in));
        const void* dense = numbers(rows * in, form, is_int8(form) ? 1.0f : scale);
        std::vector<float> scales(rows, scale / 127);
        if (form == CM_W8A16) scales.resize(rows + static_cast<size_t>(groups) * in, 1.0f);
        void* packed = keep(lines(static_cast<size_t>(cm_packed_bytes(out, in, groups, form))));
        if (cm_pack(dense, scales.data(), out, in, groups, form, packed) != CM_OK) fail(cm_error_text());
        return {out, in, groups, form, packed, below(2) ? floats(static_cast<int>(rows)) : nullptr};
    }

    void latent_attention(cm_block& b) {
        const int queries = m_.heads * (m_.nope_dim + m_.rope_dim);
        b.latent_norm = floats(m_.kv_lora);
        b.into = linear((m_.q_lora ? m_.q_lora : queries) + m_.kv_lora + m_.rope_dim, m_.hidden);
        if (m_.q_lora) b.query_norm = floats(m_.q_lora), b.query_up = linear(queries, m_.q_lora);
        const int latent_form = weights_ == CM_INT8 && below(2) ? CM_W8A16 : weights_;
        b.expand = linear(m_.heads * (m_.nope_dim + m_.value_dim), m_.kv_lora, 1, latent_form);
        b.key_absorb = linear(m_.kv_lora, m_.nope_dim, m_.heads, latent_form);
        b.value_absorb = linear(m_.value_dim, m_.kv_lora, m_.heads, latent_form);
    }

    void grouped_attention(cm_block& b) {
        b.kind = CM_GROUPED, b.rotates = below(3) > 0;
        b.into = linear((m_.heads + 2 * m_.kv_heads) * m_.head_dim, m_.hidden);
        b.window = below(2) ? 0 : 1 + below(60), b.sinks = below(2) ? floats(m_.heads) : nullptr;
        if (head_norms_) b.query_norm = floats(m_.head_dim), b.key_norm = floats(m_.head_dim);
    }

    cm_block block(bool routed) {
        cm_block b{};
        const int width = 3 + below(60);
        b.attention_norm = floats(m_.hidden), b.feed_norm = floats(m_.hidden);
        if (m_.kv_heads) {
            grouped_attention(b);
        } else {
            latent_attention(b);
        }
        b.out = linear(m_.hidden, m_.heads * m_.value_dim);
        if (!routed || below(2)) b.gate_up = linear(2 * width, m_.hidden), b.down = linear(m_.hidden, width);
        if (!routed) return b;
        b.gate = linear(m_.experts, m_.hidden, 1, CM_F32);
        b.gate_bias = below(2) ? floats(m_.experts) : nullptr;
        std::vector<cm_linear> up, down;
        for (int expert = 0; expert < m_.experts; ++expert) {
            up.push_back(linear(2 * expert_width_, m_.hidden)), down.push_back(linear(m_.hidden, expert_width_));
        }
        experts_.push_back(std::move(up)), b.expert_gate_up = experts_.back().data();
        experts_.push_back(std::move(down)), b.expert_down = experts_.back().data();
        return b;
    }

    cm_model m_{};
    cm_draft_layer draft_{};
    int weights_ = CM_F32;
    bool head_norms_ = false;
    const int expert_width_ = 5 + below(50);
    std::vector<cm_block> blocks_;
    std::vector<std::vector<cm_linear>> experts_;
    std::vector<Memory> kept_;
};

// A grammar of no sense: what may come next follows from all tokens before. Now and then nothing may.
struct Grammar {
    int vocab = 0;
    uint32_t state = 1;
    std::vector<uint32_t> before{};  // states

    bool allows(uint32_t token) const {
        const uint32_t mixed = (state ^ (token * 2654435761u)) * 2246822519u;
        return state % 7 != 0 && (mixed >> 13) % 3 == 0;
    }
    void take(uint32_t token) { before.push_back(state), state = state * 31 + token + 1; }
};

int32_t fill_mask(void* matcher, uint32_t* mask, size_t bytes) {
    const Grammar& g = *static_cast<const Grammar*>(matcher);
    if (bytes != (static_cast<size_t>(g.vocab) / 32 + 1) * sizeof(uint32_t)) fail("a mask of another size");
    std::memset(mask, 0, bytes);
    for (uint32_t token = 0; token <= static_cast<uint32_t>(g.vocab); ++token)
        if (g.allows(token)) mask[token / 32] |= 1u << token % 32;
    return g.state % 11 == 0 ? -1 : 0;
}
int32_t consume(void* matcher, uint32_t token) {
    Grammar& g = *static_cast<Grammar*>(matcher);
    if (!g.allows(token)) fail("a token was told that is not allowed");
    g.take(token);
    return 0;
}
int32_t roll_back(void* matcher, size_t tokens) {
    Grammar& g = *static_cast<Grammar*>(matcher);
    for (; tokens; --tokens) g.state = g.before.back(), g.before.pop_back();
    return 0;
}
int32_t count_allowed(void* matcher, const uint32_t* tokens, size_t count) {
    Grammar ahead = *static_cast<const Grammar*>(matcher);
    int32_t found = 0;
    for (; static_cast<size_t>(found) < count && ahead.allows(tokens[found]); ++found) ahead.take(tokens[found]);
    return found;
}
int32_t force(void* matcher, uint32_t* tokens, size_t most) {
    Grammar ahead = *static_cast<const Grammar*>(matcher);
    const size_t wanted = ahead.state / 5 % 3;
    size_t count = 0;
    for (uint32_t token = 0; token < static_cast<uint32_t>(ahead.vocab) && count < wanted && count < most; ++token)
        if (ahead.allows(token)) tokens[count++] = token, ahead.take(token), token = 0;
    return static_cast<int32_t>(count);
}
constexpr cm_grammar_functions kGrammar{fill_mask, consume, roll_back, force, count_allowed};

constexpr int kBlocks = 40, kBlockTokens = 3, kRows = 40, kContext = 60, kColumns = 4;

// An engine over a cache of its own.
class Side {
  public:
    Side(const cm_model& m, bool int8) {
        cache_ = {nullptr, int8 ? CM_INT8 : m.form, kBlocks, m.layers + 1, kBlockTokens, 0, 0, 0, -1};
        const int size = static_cast<int>(size_of(m.form));
        if (m.kv_heads) {
            const int number = int8 ? 1 : size, end = 2 * m.head_dim * number;
            cache_.rope_offset = m.head_dim * number, cache_.scale_offset = int8 ? end : -1;
            cache_.head_bytes = int8 ? end + 8 : end, cache_.row_bytes = m.kv_heads * cache_.head_bytes;
        } else {
            const int latent = int8 ? (m.kv_lora + 3) / 4 * 4 : m.kv_lora * size, end = latent + m.rope_dim * size;
            cache_.rope_offset = latent, cache_.scale_offset = int8 ? (end + 3) / 4 * 4 : -1;
            cache_.row_bytes = int8 ? cache_.scale_offset + 4 : end;
        }
        const size_t bytes =
            static_cast<size_t>(kBlocks) * cache_.layers * kBlockTokens * static_cast<size_t>(cache_.row_bytes);
        memory_ = lines(bytes);
        std::memset(memory_.get(), 0xff, bytes);  // NaN, or nonsense: nobody may look at what was not written
        cache_.base = memory_.get();
        if (cm_engine_new(&m, &cache_, 1 + below(2), kRows, kContext, &engine_) != CM_OK) fail(cm_error_text());
        cm_engine_use_grammars(engine_, &kGrammar);
    }
    ~Side() { cm_engine_free(engine_); }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    // Tokens and guesses of each sequence, one after the other, with their counts before them.
    std::vector<int32_t> step(const cm_model& m, const std::vector<cm_sequence>& sequences,
                              const std::vector<int32_t>& ids, const std::vector<int32_t>& tables,
                              std::vector<cm_matcher>& matchers) {
        const size_t count = sequences.size();
        std::vector<int32_t> token_counts(count), tokens(count * kColumns), draft_counts(count),
            drafts(count * kColumns);
        size_t hidden_rows = 0, logits_rows = 0;
        for (const cm_sequence& s : sequences) {
            hidden_rows += s.keep_hidden ? static_cast<size_t>(s.rows) : 0;
            logits_rows += s.draw == CM_DRAW_LOGITS;
        }
        const Memory hidden = lines(hidden_rows * static_cast<size_t>(m.hidden) * size_of(m.form));
        std::vector<float> logits(logits_rows * static_cast<size_t>(m.vocab) + 1);
        const cm_batch batch{static_cast<int32_t>(count), static_cast<int32_t>(ids.size()), sequences.data(),
                             ids.data(), tables.data(), 0, static_cast<int32_t>(matchers.size()), matchers.data()};
        const cm_answer answer{kColumns,      token_counts.data(), tokens.data(), draft_counts.data(),
                               drafts.data(), logits.data(),       hidden.get()};
        if (cm_step(engine_, &batch, &answer) != CM_OK) fail(cm_error_text());
        std::vector<int32_t> told;
        for (size_t i = 0; i < count; ++i) {
            told.push_back(token_counts[i]);
            told.insert(told.end(), &tokens[i * kColumns], &tokens[i * kColumns] + token_counts[i]);
            told.push_back(draft_counts[i]);
            told.insert(told.end(), &drafts[i * kColumns], &drafts[i * kColumns] + draft_counts[i]);
        }
        return told;
    }

  private:
    cm_cache cache_{};
    Memory memory_;
    cm_engine* engine_ = nullptr;
};

struct Part {
    std::vector<int32_t> table;
    bool drafting = below(4) > 0;  // for good: the draft layer's rows must have no gaps
    int fed = 0;
    Grammar grammars[2]{};  // of each side
    std::vector<int32_t> stops{};
    cm_matcher matcher(int side) {
        return {&grammars[side], stops.data(), static_cast<int32_t>(stops.size()), 0};
    }
};

// A random step of one sequence, its ids and table put behind the others'.
cm_sequence random_step(const cm_model& m, Part& part, std::vector<int32_t>& ids, std::vector<int32_t>& tables) {
    cm_sequence s{};
    s.draw = below(3), s.rows = 1 + below(8), s.start = part.fed, s.alone = below(2);
    s.drafts = s.draw == CM_DRAW_TOKEN ? below(s.rows < 4 ? s.rows : 4) : 0;
    s.first_row = static_cast<int32_t>(ids.size()), s.table = static_cast<int32_t>(tables.size());
    s.table_size = (s.start + s.rows + 3 + kBlockTokens - 1) / kBlockTokens;
    s.next_token = s.draw == CM_DRAW_TOKEN ? -1 : below(m.vocab);
    s.next_drafts = part.drafting ? below(4) : -1, s.keep_hidden = below(2), s.top_k = below(2) ? below(m.vocab) : 0;
    s.temperature = below(2) ? 0.0 : 0.7, s.top_p = below(2) ? 1.0 : 0.8, s.min_p = below(2) ? 0.0 : 0.05;
    s.seed = random_bits(), s.position = s.start + s.rows - s.drafts;
    s.matcher = s.draw == CM_DRAW_TOKEN && below(2) ? 0 : -1, s.next_forced = below(kColumns + 1);
    while (part.table.size() < static_cast<size_t>(s.table_size)) part.table.push_back(0);
    tables.insert(tables.end(), part.table.begin(), part.table.begin() + s.table_size);
    for (int i = 0; i < s.rows; ++i) ids.push_back(below(m.vocab));
    part.fed += s.rows - s.drafts;
    return s;
}

// The same steps on one side together and on the other one by one.
int check_model(int steps) {
    const Model model;
    const cm_model& m = model.get();
    const bool int8 = below(2);
    Side together(m, int8), alone(m, int8);
    Part parts[3];
    for (int i = 0; i < 3; ++i) {
        for (int block = 0; block < 13; ++block) parts[i].table.push_back(3 * block + i);
        for (Grammar& each : parts[i].grammars) each.vocab = m.vocab, each.state = 3 + static_cast<uint32_t>(i);
        for (int stop = below(3); stop > 0; --stop) parts[i].stops.push_back(below(m.vocab));
    }
    for (int number = 0; number < steps; ++number) {
        std::vector<cm_sequence> sequences;
        std::vector<int32_t> ids, tables, one_by_one;
        std::vector<cm_matcher> matchers;
        for (Part& part : parts) {
            sequences.push_back(random_step(m, part, ids, tables));
            if (sequences.back().matcher < 0) continue;
            sequences.back().matcher = static_cast<int32_t>(matchers.size());
            matchers.push_back(part.matcher(0));
        }
        for (size_t i = 0; i < sequences.size(); ++i) {
            cm_sequence s = sequences[i];
            std::vector<cm_matcher> single{parts[i].matcher(1)};
            if (s.matcher >= 0) s.matcher = 0;
            const std::vector<int32_t> own(ids.begin() + s.first_row, ids.begin() + s.first_row + s.rows);
            const std::vector<int32_t> table(tables.begin() + s.table, tables.begin() + s.table + s.table_size);
            s.first_row = s.table = 0;
            const auto told = alone.step(m, {s}, own, table, single);
            one_by_one.insert(one_by_one.end(), told.begin(), told.end());
        }
        if (together.step(m, sequences, ids, tables, matchers) != one_by_one)
            fail("a sequence alone gets something else");
        if (together.step(m, sequences, ids, tables, matchers) != one_by_one)  // as when a peer is lost
            fail("a step that is computed again gives something else");
    }
    return steps;
}

}  // namespace

int main() {
    int steps = 0;
    for (const char* name : {"portable", "avx2", "avx512", "amx"}) {
        if (cm_use_instructions(name) != CM_OK) continue;
        for (int i = 0; i < 12; ++i) steps += check_model(3);
    }
    std::printf("%d steps\n", steps);
    return steps > 0 ? 0 : 1;
}
