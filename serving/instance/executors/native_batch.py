"""Plans and results as the native library's arrays, with as little Python per sequence as possible.

A step's lists are built as Python lists and converted once each; a sequence's record is packed with one call.
"""

import ctypes
from array import array
from collections.abc import Sequence
from struct import Struct

import numpy as np

from serving.grammar.matcher import Matcher
from serving.ids import BlockId
from serving.model.native import layout
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceStep

_RECORD = Struct("<14i3dQq")
assert _RECORD.size == layout.SEQUENCE.itemsize, "the packed record is not cm_sequence"
_MATCHER = Struct("<QQii")
assert _MATCHER.size == layout.SIZES["cm_matcher"], "the packed record is not cm_matcher"

_NONE, _TOKEN, _LOGITS = int(layout.Draw.NONE), int(layout.Draw.TOKEN), int(layout.Draw.LOGITS)
_NO_RULES = (0, -1, 0, 0.0, 1.0, 0.0, 0, 0)
_LARGEST_INT = (1 << 31) - 1


class NativeBatch:
    """The struct `cm_batch`, refilled for each step.

    Args:
        grammars: the library computes the masks of sequences with a grammar; otherwise it returns their logits.
        most_forced: maximum number of grammar-forced draft tokens.
    Attributes:
        sequences: number of sequences.
        max_tokens: maximum number of tokens, or draft tokens, of one sequence.
        drafting: whether any sequence requests draft tokens.
        logits_of, hidden_of: indices of sequences whose logits, or hidden states of all rows, are returned.
        grammar_of: indices of sequences whose masks the library computes; `output_lengths`: their output lengths before
            the step.
    """

    def __init__(self, *, grammars: bool = False, most_forced: int = 0) -> None:
        self._grammars = grammars
        self._most_forced = most_forced
        self.struct = layout.Batch()
        self.sequences = 0
        self.max_tokens = 1
        self.drafting = False
        self._records = bytearray()
        self._begin([])

    @property
    def special(self) -> bool:
        """Whether any sequence needs more than tokens and draft tokens."""
        return bool(self.logits_of or self.hidden_of)

    @property
    def hidden_rows(self) -> int:
        """Number of rows whose hidden states are returned."""
        return sum(self.rows_of[index] for index in self.hidden_of)

    def fill(self, steps: Sequence[SequenceStep], unknown: int = 0) -> None:
        """Lay out the sequences of a plan.

        Args:
            unknown: tokens that each sequence gains before this step starts and that are not known yet.
        Effects: replaces the previous contents.
        """
        self._begin(steps)
        records, ids, tables, rows_of = self._records, self._ids, self._tables, self.rows_of
        for index, step in enumerate(steps):
            first, table = len(ids), len(tables)
            ids += step.tokens
            tables += step.block_table
            order, next_drafts = step.sample, -1 if step.next_drafts is None else step.next_drafts
            if order is not None and self._native(order):
                draw, next_token, drafts = _TOKEN, -1, len(step.drafts)
                matcher = self._matcher_of(index, order, unknown) if order.sampling.grammar is not None else -1
                rules = _rules(order, unknown, matcher, self._most_forced)
                if drafts:
                    ids += step.drafts
                if next_drafts > 0:
                    self.drafting = True
                self.max_tokens = max(self.max_tokens, drafts + 1, next_drafts)
            else:
                draw, rules, next_token, drafts = self._without_draw(index, step), _NO_RULES, -1, 0
                next_drafts = min(next_drafts, 0)
                if order is None and step.next_prompt_token is not None:
                    next_token = step.next_prompt_token
            keep = 0
            if step.prompt_logprobs is not None:
                keep = 1
                self.hidden_of.append(index)
            rows = len(ids) - first
            rows_of.append(rows)
            _RECORD.pack_into(
                records, index * _RECORD.size, first, rows, step.start, table, len(tables) - table, drafts, draw,
                next_drafts, next_token, keep, step.alone, *rules,
            )  # fmt: skip
        self._end(len(steps))

    def put_matchers(self, matchers: Sequence[Matcher | None]) -> None:
        """Set the matchers of the sequences in `grammar_of`; a sequence with None gets no token."""
        self._matchers = bytearray(len(matchers) * _MATCHER.size)
        for index, matcher in enumerate(matchers):
            if matcher is not None:
                stops, count = matcher.stops.buffer_info()
                _MATCHER.pack_into(self._matchers, index * _MATCHER.size, matcher.address, stops, count, 0)
        self.struct.matchers = len(matchers)
        self.struct.matcher = ctypes.addressof(ctypes.c_char.from_buffer(self._matchers))

    def put_tokens(self, tokens: Sequence[int]) -> None:
        """Replace the fed tokens: one for each sequence of a plan that was laid out before they were known."""
        assert len(tokens) == self.struct.rows, "the library has the array's address: it must not move"
        self._arrays[0][:] = array("i", tokens)

    def fill_last_rows(self, fed: Sequence[tuple[SequenceStep, int]]) -> None:
        """Lay out only the last row of some sequences, to draft after a token sampled by the caller.

        The model's own cache rows are not written, because other sequences may read them.

        Args:
            fed: a sequence as it was computed, and the token sampled from its last row.
        Effects: replaces the previous contents.
        """
        self._begin(fed)
        for index, (step, token) in enumerate(fed):
            table, wanted = len(self._tables), step.next_drafts or 0
            self._ids.append(step.tokens[-1])
            self._tables += step.block_table
            self.rows_of.append(1)
            self.drafting = self.drafting or wanted > 0
            self.max_tokens = max(self.max_tokens, wanted)
            _RECORD.pack_into(
                self._records, index * _RECORD.size, index, 1, step.start + len(step.tokens) - 1, table,
                len(self._tables) - table, 0, _NONE, wanted, token, 0, step.alone, *_NO_RULES,
            )  # fmt: skip
        self._end(len(fed))
        self.struct.settled = 1

    def _native(self, order: SampleOrder) -> bool:
        return (order.sampling.grammar is None or self._grammars) and _plain(order)

    def _matcher_of(self, index: int, order: SampleOrder, unknown: int) -> int:
        """Number of a sequence's matcher."""
        self.grammar_of.append(index)
        self.output_lengths.append(len(order.output) + unknown)
        self.drafting = self.drafting or self._most_forced > 0
        self.max_tokens = max(self.max_tokens, self._most_forced)
        return len(self.grammar_of) - 1

    def _without_draw(self, index: int, step: SequenceStep) -> int:
        if step.sample is None:
            return _NONE
        self.logits_of.append(index)
        return _LOGITS

    def _begin(self, sequences: Sequence[object]) -> None:
        self.sequences = len(sequences)
        self.max_tokens = 1
        self.drafting = False
        self.logits_of: list[int] = []
        self.hidden_of: list[int] = []
        self.grammar_of: list[int] = []
        self.output_lengths: list[int] = []
        self.rows_of: list[int] = []
        self._ids: list[int] = []
        self._tables: list[BlockId] = []
        needed = len(sequences) * _RECORD.size
        if len(self._records) < needed:
            self._records = bytearray(2 * needed)
            self.struct.sequence = ctypes.addressof(ctypes.c_char.from_buffer(self._records))

    def _end(self, sequences: int) -> None:
        self._arrays = array("i", self._ids), array("i", self._tables)  # kept while the struct points to them
        ids, tables = self._arrays
        self.struct.sequences = sequences
        self.struct.settled = self.struct.matchers = 0
        self.struct.rows = len(ids)
        self.struct.ids, self.struct.tables = ids.buffer_info()[0], tables.buffer_info()[0]


class NativeAnswer:
    """A cm_answer, and the data that the library wrote there.

    Attributes:
        logits: `[sequences of logits_of, vocab] float32`.
        hidden: `[hidden_rows, hidden]`, float32, or the bits of bfloat16 as uint16.

    Args:
        form: of hidden states, F32 or BF16.
    """

    def __init__(self, vocab: int, hidden: int, form: layout.Form) -> None:
        self.struct = layout.NativeOutput()
        self.logits = np.empty((0, vocab), np.float32)
        self.hidden = np.empty((0, hidden), np.float32 if form == layout.Form.F32 else np.uint16)
        self._sequences = 0
        self._drafting = False
        self._make_room(64)

    def prepare(self, batch: NativeBatch) -> None:
        """Allocate space for a step's results. Effects: data read from here before may be overwritten."""
        self._sequences, self._drafting = batch.sequences, batch.drafting
        wanted = batch.sequences * batch.max_tokens
        if wanted > len(self._tokens):
            self._make_room(2 * wanted)
        self.struct.max_tokens = batch.max_tokens
        if batch.special:
            self.logits = np.empty((len(batch.logits_of), self.logits.shape[1]), self.logits.dtype)
            self.hidden = np.empty((batch.hidden_rows, self.hidden.shape[1]), self.hidden.dtype)
            self.struct.logits, self.struct.hidden = self.logits.ctypes.data, self.hidden.ctypes.data
        else:
            self.struct.logits = self.struct.hidden = None

    def tokens(self) -> list[tuple[int, ...]]:
        """New tokens of each sequence."""
        return self._lists(self._token_counts, self._tokens)

    def drafts(self) -> list[tuple[int, ...]]:
        """Draft tokens for each sequence."""
        return self._lists(self._draft_counts, self._drafts) if self._drafting else [()] * self._sequences

    def _lists(self, counts: "array[int]", values: "array[int]") -> list[tuple[int, ...]]:
        width = self.struct.max_tokens
        sizes, flat = counts[: self._sequences], values[: self._sequences * width]
        if width == 1:
            return [(value,) if size else () for value, size in zip(flat, sizes, strict=True)]
        return [tuple(flat[row * width : row * width + size]) for row, size in enumerate(sizes)]

    def _make_room(self, entries: int) -> None:
        arrays = [array("i", bytes(4 * entries)) for _ in range(4)]
        self._token_counts, self._tokens, self._draft_counts, self._drafts = arrays
        places = [one.buffer_info()[0] for one in arrays]
        self.struct.token_counts, self.struct.tokens, self.struct.draft_counts, self.struct.drafts = places


def _plain(order: SampleOrder) -> bool:
    """Whether sampling needs only filters and a mask on the logits."""
    p = order.sampling
    if p.logprobs is not None or p.logit_bias or p.repetition_penalty != 1:
        return False
    if p.presence_penalty or p.frequency_penalty or p.allowed_token_ids or p.bad_words:
        return False
    return not (p.min_tokens and p.stop_token_ids and len(order.output) < p.min_tokens)


def _rules(
    order: SampleOrder, unknown: int, matcher: int, forced: int
) -> tuple[int, int, int, float, float, float, int, int]:
    """The end of a record, starting with `top_k`."""
    p: SamplingParams = order.sampling
    top_k = min(max(p.top_k, 0), _LARGEST_INT)
    position = len(order.prompt) + len(order.output) + unknown
    return top_k, matcher, forced, p.temperature, p.top_p, p.min_p, p.seed, position
