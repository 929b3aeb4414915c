// The draft layer's part of a step: it follows the model's rows with its own rows in the cache's last layer, and drafts
// the tokens after those just sampled.
//
// The layer's row at position p takes the model's hidden state there and the token at p + 1. So every valid row (known
// tokens and accepted draft tokens) gets one as soon as its next token is known. Rows of rejected draft tokens stay in
// the cache until the next step overwrites them, before any read. Only a sequence's last row needs more than its cache
// row: it goes through the whole layer and gives a draft token. Further draft tokens apply the layer again, to its own
// output and draft token, one position later; those cache rows are also overwritten by the true ones.
#pragma once
#include "block.h"
#include "head.h"
#include "isa.h"
#include "rotations.h"
#include "sampler.h"
#include "workspace.h"

namespace cm::CM_ISA_NAMESPACE {

template <class T>
class DraftStep {
  public:
    DraftStep(cm_engine& engine, const Workspace<T>& space, const cm_batch& batch, const cm_answer& answer)
        : e_(engine),
          m_(engine.model),
          d_(*engine.model.draft),
          w_(space),
          batch_(batch),
          answer_(answer),
          blocks_(engine, space) {}

    // Requires the results' tokens. An unavailable draft token ends a sequence's drafts and nothing else.
    void run() {
        const int rows = list_rows();
        if (rows == 0) return;
        fuse(rows);
        for (int row = 0; row < rows; ++row) move_place(m_, w_, w_.draft_row[row], row);
        const Pass kept{rows, nullptr, 0, m_.layers};
        blocks_.keep_only(kept, d_.block);
        int guessing = keep_last_rows();
        for (int guess = 1; guessing > 0; ++guess) {
            const Pass pass{guessing, w_.spans, guessing, m_.layers};
            for (int i = 0; i < guessing; ++i) w_.spans[i] = {i, 1, w_.position[i], w_.table[i], false};
            if (guess == 1) {
                blocks_.rest(pass, d_.block);
            } else {
                blocks_.run(pass, d_.block);
            }
            if (e_.group && has_failed(*e_.group)) return;
            guess_tokens(guessing, guess);
            guessing = next_rows(guessing, guess);
        }
    }

  private:
    // draft_row, draft_token: rows of the step that get one here, and the token after each; draft_last: for sequences
    // that request draft tokens, the last of them. Returns their number.
    int list_rows() {
        int count = 0;
        wanting_ = 0;
        for (int index = 0; index < batch_.sequences; ++index) {
            const cm_sequence& s = batch_.sequence[index];
            if (s.next_drafts < 0 || (s.draw == CM_DRAW_TOKEN && answer_.token_counts[index] == 0)) continue;
            const int tokens = answer_.token_counts[index], holding = s.rows - s.drafts + (tokens ? tokens - 1 : 0);
            const int next =
                tokens ? answer_.tokens[static_cast<int64_t>(index) * answer_.max_tokens + tokens - 1] : s.next_token;
            for (int i = 0; i < holding && (i + 1 < holding || next >= 0); ++i) {
                w_.draft_row[count] = s.first_row + i;
                w_.draft_token[count++] = i + 1 < holding ? batch_.ids[s.first_row + i + 1] : next;
            }
            if (s.next_drafts == 0 || answer_.draft_counts[index] > 0) continue;  // or its draft tokens are forced
            w_.draft_sequence[wanting_] = index;
            w_.draft_last[wanting_++] = count - 1;
        }
        return count;
    }

    // x of rows draft_row and tokens draft_token -> x of rows 0 ... count - 1, the layer's input.
    void fuse(int count) {
        each_row(e_.team, count, 2 * m_.hidden, [&](int row, int) {
            const T* token = static_cast<const T*>(d_.embed) + static_cast<int64_t>(w_.draft_token[row]) * m_.hidden;
            float* wide = w_.wide + row * w_.normed.stride;
            convert_row(token, m_.hidden, wide);
            rms_norm(wide, d_.token_norm, m_.hidden, m_.norm_eps, w_.fused.row(row));
            rms_norm(w_.x + w_.draft_row[row] * w_.x_stride, d_.hidden_norm, m_.hidden, m_.norm_eps,
                     w_.fused.row(row) + m_.hidden);
            if (d_.fuse.form == CM_INT8) w_.fused.quantise(row, 2 * m_.hidden);
        });
        product(e_.team, d_.fuse, w_.fused.rows(d_.fuse, 0, count),
                [&](int first, int rows, int column, const float* tile) {
                    for (int r = 0; r < rows; ++r) {
                        convert_row(tile + r * kPanel, columns_in(m_.hidden, column),
                                    w_.x + (first + r) * w_.x_stride + column);
                    }
                });
    }

    // Compacts rows: the last rows of the sequences that request draft tokens become rows 0, 1 ...
    int keep_last_rows() {
        for (int i = 0; i < wanting_; ++i) {
            const int from = w_.draft_last[i];
            if (from == i) continue;
            move_place(m_, w_, from, i);
            convert_row(w_.x + from * w_.x_stride, m_.hidden, w_.x + i * w_.x_stride);
            w_.normed.copy(from, i);
        }
        return wanting_;
    }

    void guess_tokens(int count, int guess) {
        each_logits(
            e_, w_, d_.norm, d_.head, count, [](int i) { return i; },
            [&](int i, const float* logits, int) { w_.draft_token[i] = largest_logit(logits, m_.vocab); });
        for (int i = 0; i < count; ++i) {
            const int64_t index = w_.draft_sequence[i];
            if (w_.draft_token[i] == kNotFinite) continue;
            answer_.drafts[index * answer_.max_tokens + guess - 1] = w_.draft_token[i];
            answer_.draft_counts[index] = guess;
        }
    }

    // Sequences that request one more draft token are compacted; their rows move to the next position.
    int next_rows(int count, int guess) {
        int going = 0;
        for (int i = 0; i < count; ++i) {
            const int index = w_.draft_sequence[i];
            if (w_.draft_token[i] == kNotFinite || batch_.sequence[index].next_drafts <= guess) continue;
            w_.draft_sequence[going] = index;
            w_.draft_token[going] = w_.draft_token[i];
            w_.draft_row[going] = i;
            place_row(m_, w_, going, w_.position[i] + 1, w_.table[i]);
            ++going;
        }
        if (going > 0) fuse(going);
        return going;
    }

    cm_engine& e_;
    const cm_model& m_;
    const cm_draft_layer& d_;
    const Workspace<T>& w_;
    const cm_batch& batch_;
    const cm_answer& answer_;
    BlockStep<T> blocks_;
    int wanting_ = 0;
};

}  // namespace cm::CM_ISA_NAMESPACE
