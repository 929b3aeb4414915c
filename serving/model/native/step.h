// A whole step: rows of all sequences through the model, sampling, verification of draft tokens, new draft tokens.
#pragma once
#include "block.h"
#include "draft.h"
#include "error.h"
#include "grammar.h"
#include "head.h"
#include "isa.h"
#include "rotations.h"
#include "sampler.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
class Step {
  public:
    Step(cm_engine& engine, const cm_batch& batch, const cm_answer& answer)
        : e_(engine), m_(engine.model), w_(engine, engine.scratch), batch_(batch), answer_(answer) {}

    int32_t run() {
        lay_out();
        const int cut = second_half();
        if (cut)
            run_halves(cut);
        else
            run_whole();
        if (e_.group && has_failed(*e_.group)) return CM_GROUP;
        hand_out_hidden();
        draw_tokens();
        const int spoiled = take_tokens();
        if (spoiled >= 0) return fail(CM_NOT_FINITE, "sequence %d: logits are not finite", spoiled);
        if (m_.draft) DraftStep<T>(e_, w_, batch_, answer_).run();
        drop_impossible_guesses();
        return CM_OK;
    }

  private:
    void run_whole() {
        BlockStep<T> blocks(e_, w_);
        for (int layer = 0; layer < m_.layers; ++layer) {
            blocks.run({batch_.rows, w_.spans, batch_.sequences, layer, batch_.settled != 0}, m_.blocks[layer]);
            if (e_.group && has_failed(*e_.group)) return;
        }
    }

    // The first sequence of the second micro-batch: a sequence is never divided. 0 = the step is one micro-batch.
    int second_half() const {
        if (!e_.group) return 0;
        const bool two = micro_batches(*e_.group) > 1 && batch_.sequences > 1;
        cut_into(*e_.group, two ? 2 : 1);
        int cut = two ? 1 : 0;
        for (; two && cut + 1 < batch_.sequences; ++cut)
            if (2 * batch_.sequence[cut].first_row + batch_.sequence[cut].rows >= batch_.rows) break;
        return cut;
    }

    // Two micro-batches in turns: while one's rows are with their experts, attention of the other is computed. Both read
    // all weights but those of experts that are computed for both at once.
    void run_halves(int cut) {
        const int middle = batch_.sequence[cut].first_row;
        const Workspace<T> second = w_.from(m_, middle, 1);
        for (int index = cut; index < batch_.sequences; ++index) w_.spans[index].first_row -= middle;
        BlockStep<T> blocks[2] = {{e_, w_}, {e_, second}};
        Pass passes[2] = {{middle, w_.spans, cut, 0, batch_.settled != 0},
                          {batch_.rows - middle, w_.spans + cut, batch_.sequences - cut, 0, batch_.settled != 0}};
        for (int layer = 0; layer <= m_.layers; ++layer) {
            for (int half = 0; half < 2; ++half) {
                passes[half].layer = layer;
                if (layer > 0) blocks[half].finish(passes[half], m_.blocks[layer - 1]);
                if (has_failed(*e_.group)) return;
                if (layer < m_.layers) blocks[half].begin(passes[half], m_.blocks[layer]);
                if (has_failed(*e_.group)) return;
            }
        }
        cut_into(*e_.group, 1);  // the draft layer's passes are not divided
    }

    void lay_out() {
        for (int index = 0; index < batch_.sequences; ++index) {
            const cm_sequence& s = batch_.sequence[index];
            w_.spans[index] = {s.first_row, s.rows, s.start, batch_.tables + s.table, s.alone == 0};
            answer_.token_counts[index] = answer_.draft_counts[index] = 0;
            for (int i = 0; i < s.rows; ++i) w_.drawn_sequence[s.first_row + i] = index;
        }
        each_row(e_.team, batch_.rows, m_.hidden + 8 * m_.rope_dim, [&](int row, int) {
            const Span& span = w_.spans[w_.drawn_sequence[row]];
            place_row(m_, w_, row, span.start + row - span.first_row, span.table);
            const T* token = static_cast<const T*>(m_.embed) + static_cast<int64_t>(batch_.ids[row]) * m_.hidden;
            convert_row(token, m_.hidden, w_.x + row * w_.x_stride);
        });
    }

    void hand_out_hidden() {
        T* to = static_cast<T*>(answer_.hidden);
        for (int index = 0; index < batch_.sequences; ++index) {
            const cm_sequence& s = batch_.sequence[index];
            for (int i = 0; s.keep_hidden && i < s.rows; ++i, to += m_.hidden) {
                convert_row(w_.x + (s.first_row + i) * w_.x_stride, m_.hidden, to);
            }
        }
    }

    // drawn_token of every sampled row, in the order of drawn_row; or rows of logits instead.
    void draw_tokens() {
        int count = 0, logits_rows = 0;
        for (int index = 0; index < batch_.sequences; ++index) {
            const cm_sequence& s = batch_.sequence[index];
            for (int i = s.rows - 1 - s.drafts; s.draw != CM_DRAW_NONE && i < s.rows; ++i) {
                w_.drawn_row[count] = s.first_row + i;
                w_.drawn_sequence[count] = index;
                w_.drawn_token[count++] = s.draw == CM_DRAW_LOGITS ? logits_rows++ : s.drafts - (s.rows - 1 - i);
            }
        }
        drawn_ = count;
        each_logits(
            e_, w_, m_.norm, m_.head, count, [this](int i) { return w_.drawn_row[i]; },
            [this](int i, const float* logits, int thread) { draw_row(i, logits, thread); });
    }

    // drawn_token is the row in the returned logits, or the number of the sequence's sample.
    void draw_row(int i, const float* logits, int thread) {
        const cm_sequence& s = batch_.sequence[w_.drawn_sequence[i]];
        const ThreadSpace<T>& own = w_.threads[thread];
        if (s.matcher >= 0) {
            draw_in_order(i, s, own);
        } else if (s.draw == CM_DRAW_LOGITS) {
            convert_row(logits, m_.vocab, answer_.logits + w_.drawn_token[i] * static_cast<int64_t>(m_.vocab));
            if (largest_logit(logits, m_.vocab) == kNotFinite) w_.drawn_token[i] = kNotFinite;
        } else {
            w_.drawn_token[i] = draw(logits, m_.vocab, s, s.position + w_.drawn_token[i], own.weights, own.spare);
        }
    }

    // Samples all rows of a sequence with a matcher, on the thread that gets the first of them: each one's mask needs
    // the previous token. It ends with the first sample that differs from its draft token; then the grammar may force
    // the next ones.
    void draw_in_order(int first, const cm_sequence& s, const ThreadSpace<T>& own) {
        const int index = w_.drawn_sequence[first], chunk = first / kDrawnRows * kDrawnRows;
        if (first > chunk && w_.drawn_sequence[first - 1] == index) return;
        const int end = chunk + kDrawnRows < drawn_ ? chunk + kDrawnRows : drawn_;
        const int32_t* guesses = batch_.ids + s.first_row + s.rows - s.drafts;
        cm_matcher& matcher = batch_.matcher[s.matcher];
        const int begin = w_.drawn_token[first];
        bool going = begin ? w_.drawn_token[first - 1] == guesses[begin - 1] : begin_draws(e_.grammar, matcher);
        for (int i = first; i < end && w_.drawn_sequence[i] == index; ++i) {
            const int at = w_.drawn_token[i];
            w_.drawn_token[i] = kNotDrawn;
            if (!going) continue;
            if (!allow_next(e_.grammar, matcher, m_.vocab, own.allowed)) {
                going = false;
                continue;
            }
            float* logits = w_.logits + (i - chunk) * w_.logits_stride;
            const int token = draw_allowed(logits, m_.vocab, own.allowed, s, s.position + at, own.weights, own.spare);
            w_.drawn_token[i] = token;
            going = token != kNotFinite && tell(e_.grammar, matcher, token);
            if (!going || (at < s.drafts && guesses[at] == token)) continue;
            going = false;
            int32_t* forced = answer_.drafts + static_cast<int64_t>(index) * answer_.max_tokens;
            if (s.next_forced) answer_.draft_counts[index] = forced_next(e_.grammar, matcher, forced, s.next_forced);
        }
    }

    // Draft tokens up to the first mismatch, and the sample there. Returns a sequence with logits that were not finite,
    // or -1.
    int take_tokens() {
        for (int i = 0; i < drawn_; ++i) {
            if (w_.drawn_token[i] == kNotFinite) return w_.drawn_sequence[i];
        }
        for (int i = 0; i < drawn_;) {
            const int index = w_.drawn_sequence[i];
            const cm_sequence& s = batch_.sequence[index];
            const int32_t* guesses = batch_.ids + s.first_row + s.rows - s.drafts;
            int32_t* tokens = answer_.tokens + static_cast<int64_t>(index) * answer_.max_tokens;
            for (int j = 0; s.draw == CM_DRAW_TOKEN && j <= s.drafts; ++j) {
                if (w_.drawn_token[i + j] == kNotDrawn) break;
                tokens[answer_.token_counts[index]++] = w_.drawn_token[i + j];
                if (j == s.drafts || guesses[j] != w_.drawn_token[i + j]) break;
            }
            i += s.drafts + 1;
        }
        return -1;
    }

    // The draft layer's tokens up to the first that the grammar forbids.
    void drop_impossible_guesses() {
        for (int index = 0; index < batch_.sequences; ++index) {
            const cm_sequence& s = batch_.sequence[index];
            int32_t& count = answer_.draft_counts[index];
            if (s.matcher < 0 || count == 0) continue;
            const int32_t* guesses = answer_.drafts + static_cast<int64_t>(index) * answer_.max_tokens;
            count = possible_next(e_.grammar, batch_.matcher[s.matcher], guesses, count);
        }
    }

    cm_engine& e_;
    const cm_model& m_;
    const Workspace<T> w_;
    const cm_batch& batch_;
    const cm_answer& answer_;
    int drawn_ = 0;
};

static size_t scratch_bytes(const cm_engine& engine) {
    return engine.model.form == CM_F32 ? Workspace<float>(engine, nullptr).bytes
                                       : Workspace<bf16>(engine, nullptr).bytes;
}

static int32_t step(cm_engine& engine, const cm_batch& batch, const cm_answer& answer) {
    if (engine.model.form == CM_F32) return Step<float>(engine, batch, answer).run();
    return Step<bf16>(engine, batch, answer).run();
}

}  // namespace cm::CM_ISA_NAMESPACE
