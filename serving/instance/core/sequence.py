"""The scheduler's record of one sequence.

It does not separate prompt and output: `tokens` are known so far, and `num_computed` of them are in the KV cache, which
catches up in chunks while many are missing and one by one in decode. A preempted or resumed sequence is the same
case with more tokens to catch up.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import overload

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId, SequenceId
from serving.instance.core.lookup import DraftLookup
from serving.instance.core.speculation import Acceptance
from serving.values.sequence import NEVER_MASKED, HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs
from serving.values.step_plan import SampleOrder

# The tokens of one sequence, prompt and output, without a copy of the prompt.
#
# Prompts are long, never change and are in the command anyway; a virtual-time run has prompts that are only lengths. So
# a sequence's tokens are a view: first the prompt, then the output, which grows.


class KnownTokens(Sequence[int]):
    """`prompt` followed by `output`, both by reference."""

    __slots__ = ("_prompt", "_prompt_len", "output")

    def __init__(self, prompt: Sequence[int], output: list[int]) -> None:
        """
        Args:
            prompt: never changes.
            output: its owner may append to it.
        """
        self._prompt = prompt
        self._prompt_len = len(prompt)
        self.output = output

    def __len__(self) -> int:
        return self._prompt_len + len(self.output)

    def span(self, start: int, stop: int) -> Sequence[int]:
        """Tokens at positions `start ... stop - 1`, all of which exist. Copies at most those tokens."""
        prompt_len = self._prompt_len
        if start >= prompt_len:
            return self.output[start - prompt_len : stop - prompt_len]
        if stop <= prompt_len:
            return self._prompt[start:stop]
        return [*self._prompt[start:], *self.output[: stop - prompt_len]]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        prompt_len = self._prompt_len
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1 or stop < start:
                return [*self._prompt, *self.output][index]
            return self.span(start, stop)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._prompt[index] if index < prompt_len else self.output[index - prompt_len]


# The phases of a sequence inside one engine, as a table.
#
#     add ──► WAITING ──admit──► PREFILLING ──prompt done──► DECODING ──► FINISHED
#                ▲                 │  │                       │
#                └────preempt──────┘  └──prompt held──► HELD ◄┤hand on
#                │                                       └────┼─────────► FINISHED
#                └────preempt─────────────────────────────────┘
#     adopt ─► ADOPTING ──pull start──► PULLING ──pull done──► DECODING
#                                                  └─────────► PREFILLING (tokens beyond the handoff are recomputed)
#     WAITING ──fetch start──► FETCHING ──fetch done──► PREFILLING
#
# FETCHING: blocks are reserved, and the leading ones are being filled from the KV-cache pool. HELD: prefill is done, or
# the instance drains; the blocks wait to be pulled and acknowledged, or to be taken over by a sequence that continues
# here. ADOPTING: another sequence holds the blocks, usually at another instance, and no capacity is free yet. CLOSING:
# the sequence has ended for all other parties, but a step, a pull or a fetch may still write into its blocks, which
# therefore cannot be reused yet. An event missing in the table is a bug: `LedgerError`.


class SequencePhase(Enum):
    """Phase of a sequence; the order of members has no meaning."""

    __hash__ = object.__hash__  # members are singletons; Enum hashes their names, in Python

    WAITING = "waiting"
    FETCHING = "fetching"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    HELD = "held"
    ADOPTING = "adopting"
    PULLING = "pulling"
    CLOSING = "closing"
    FINISHED = "finished"


class PhaseEvent(Enum):
    """Events of a sequence."""

    __hash__ = object.__hash__  # as above

    ADMIT = "admit"
    PREEMPT = "preempt"
    PROMPT_DONE = "prompt done"
    PROMPT_HELD = "prompt held"
    HAND_ON = "hand on"
    FETCH_START = "fetch start"
    FETCH_DONE = "fetch done"
    PULL_START = "pull start"
    PULL_DONE = "pull done"
    PULL_DONE_IN_PART = "pull done in part"
    CLOSE = "close"
    END = "end"


_P, _E = SequencePhase, PhaseEvent

TRANSITIONS: dict[SequencePhase, dict[PhaseEvent, SequencePhase]] = {
    _P.WAITING: {_E.ADMIT: _P.PREFILLING, _E.FETCH_START: _P.FETCHING, _E.END: _P.FINISHED},
    _P.FETCHING: {_E.FETCH_DONE: _P.PREFILLING, _E.CLOSE: _P.CLOSING, _E.END: _P.FINISHED},
    _P.PREFILLING: {
        _E.PREEMPT: _P.WAITING,
        _E.PROMPT_DONE: _P.DECODING,
        _E.PROMPT_HELD: _P.HELD,
        _E.CLOSE: _P.CLOSING,
        _E.END: _P.FINISHED,
    },
    _P.DECODING: {
        _E.PREEMPT: _P.WAITING,
        _E.HAND_ON: _P.HELD,
        _E.CLOSE: _P.CLOSING,
        _E.END: _P.FINISHED,
    },
    _P.HELD: {_E.END: _P.FINISHED},
    _P.ADOPTING: {_E.PULL_START: _P.PULLING, _E.END: _P.FINISHED},
    _P.PULLING: {
        _E.PULL_DONE: _P.DECODING,
        _E.PULL_DONE_IN_PART: _P.PREFILLING,
        _E.CLOSE: _P.CLOSING,
        _E.END: _P.FINISHED,
    },
    _P.CLOSING: {_E.END: _P.FINISHED},
    _P.FINISHED: {},
}


def next_phase(phase: SequencePhase, event: PhaseEvent) -> SequencePhase:
    """The phase after `event`.

    Raises: LedgerError if the event is impossible in this phase.
    """
    following = TRANSITIONS[phase].get(event)
    if following is None:
        raise LedgerError(f"a {phase.value} sequence cannot take the event '{event.value}'")
    return following


# The scheduler's record of one sequence.

Turn = tuple[float, int]
"""Order among sequences of equal priority, smallest first: engine time [s], then arrival number."""

Order = tuple[float, Turn]
"""Order among all sequences, smallest first: priority, then turn. With several keys this priority is 0; the request's
priority then only orders the turns within its key, see `SequenceQueue`.
"""


def turn_of(spec: SequenceSpec, now: float, arrival: int, delay_s: float, *, held: bool) -> Turn:
    """Turn of a sequence that arrives now, delayed in proportion to its prompt length.

    A short prompt thus overtakes a long one that arrived shortly before, but none starves. Resumed or handed-off
    sequences are not delayed, because their streams have already started. Sequences whose blocks are held here are
    first, because others may wait for those blocks.

    Args:
        delay_s: per 1,000 tokens of a prompt [s].
        held: its blocks are held in this engine. Then it also precedes all priorities, see `LiveSequence.order`.
    """
    if held:
        return (-math.inf, arrival)
    return (now if spec.output else now + delay_s * len(spec.prompt) / 1000, arrival)


class LiveSequence:
    """One sequence inside an engine. Mutable; owned by the scheduler's thread."""

    __slots__ = (
        "acceptance",
        "blocks",
        "cached_tokens",
        "came_s",
        "deadline",
        "drafts",
        "drafts_forced",
        "feeds_forced",
        "first_reported",
        "hashes",
        "holder",
        "in_flight",
        "leaving",
        "lookup",
        "masked_from",
        "masked_tokens",
        "next_full",
        "num_claimed",
        "num_computed",
        "num_published",
        "num_slid",
        "num_stored",
        "order",
        "output",
        "phase",
        "pool_use",
        "preempted",
        "prompt_logprobs",
        "prompt_logprobs_wanted",
        "prompt_tokens",
        "sample_order",
        "samples",
        "sequence_id",
        "spec",
        "stop_tokens",
        "ticket",
        "ticket_id",
        "tokens",
        "waited_s",
    )

    def __init__(self, spec: SequenceSpec, turn: Turn, now: float, ticket: HandoffTicket | None = None) -> None:
        """
        Args:
            turn: its position among equal priorities.
            now: engine time [s]; the deadline is relative to it.
            ticket: identifies the held KV blocks of an adopted sequence.
        """
        sampling = spec.sampling
        self.spec = spec
        self.sequence_id: SequenceId = spec.sequence_id
        # A sequence whose blocks are held here precedes all priorities: a sequence with priority may need those blocks.
        self.order: Order = (self._rank if math.isfinite(turn[0]) else -math.inf, turn)
        self.came_s = now
        self.deadline = now + spec.time_left_s
        self.phase = SequencePhase.WAITING if ticket is None else SequencePhase.ADOPTING
        self.output: list[int] = list(spec.output)
        self.tokens = KnownTokens(spec.prompt, self.output)
        """Prompt and output; append-only, read by running steps."""
        self.prompt_tokens = len(spec.prompt)
        self.stop_tokens = frozenset(sampling.stop_token_ids)
        self.samples = sampling.max_tokens > 0  # otherwise only the prompt is computed, for its log-probabilities
        self.sample_order = SampleOrder(sampling, spec.prompt, self.output)
        self.blocks: list[BlockId] = []
        self.num_computed = 0
        """Leading tokens whose KV is in `blocks`."""
        self.masked_from = NEVER_MASKED if ticket is None else ticket.masked_from  # first position with inexact KV
        self.masked_tokens = 0  # computed while experts were masked, since the last report
        self.hashes: list[BlockHash] = list(spec.prompt_hashes)
        """Prefix hashes of the leading full blocks, as far as they were needed."""
        self.num_published = 0  # leading blocks that no longer need publishing
        self.next_full = 0  # computed tokens from which on another block may be full
        self.num_stored = 0  # leading blocks that no longer need storing in the KV-cache pool
        self.num_slid, self.num_claimed = 0, -1  # leading rows without sliding blocks; rows claimed, -1 = not yet
        self.pool_use: PoolUse | None = None
        """The pool's result at the first admission; None without a pool or a lookup."""
        self.ticket = ticket
        self.ticket_id: str | None = None
        """The handoff that this sequence waits on while HELD."""
        self.holder: LiveSequence | None = None
        """The held sequence of the same engine with the blocks of `ticket`, which change hands without a copy."""
        self.leaving = False  # to be handed off as soon as it decodes, because the instance drains
        self.in_flight = False  # a running step reads and writes this sequence's blocks
        self.drafts: tuple[int, ...] = ()
        """Draft tokens after `tokens`, for the next step to verify."""
        self.drafts_forced = False
        """Whether its grammar forces them; otherwise they are the draft layer's, or were looked up."""
        self.feeds_forced = False
        """The same for the draft tokens in the last step."""
        self.acceptance: Acceptance | None = None
        """Acceptance of this sequence's draft tokens from the draft layer; None before the first."""
        self.lookup: DraftLookup | None = None
        """Its indexed text, if draft tokens are looked up; None before its first token."""
        self.cached_tokens: int | None = None
        """Tokens that were not computed at the first admission: matched here, and pulled from the pool."""
        self.waited_s: float | None = None  # from its arrival to its first admission as a prompt
        self.preempted = 0  # times since the last report
        # The prefill instance has already reported an adopted sequence's first token and the facts reported with it.
        self.first_reported = ticket is not None
        self.prompt_logprobs_wanted = None if ticket is not None else sampling.prompt_logprobs
        self.prompt_logprobs: list[TokenLogprobs] = []

    @property
    def num_known(self) -> int:
        """Length of `tokens`."""
        return self.prompt_tokens + len(self.output)

    @property
    def num_missing(self) -> int:
        """Known tokens that are not in the KV cache yet."""
        return self.prompt_tokens + len(self.output) - self.num_computed

    @property
    def num_to_compute(self) -> int:
        """Known tokens that this engine still has to compute, without those that a handoff will bring."""
        brought = self.ticket.computed_tokens if self.ticket and self.phase is SequencePhase.ADOPTING else 0
        return self.num_known - max(self.num_computed, brought)

    @property
    def stays(self) -> bool:
        """Whether it decodes here even on a prefill instance, by request or because it was handed off to it."""
        return self.spec.whole or self.ticket is not None

    def advance(self, event: PhaseEvent) -> None:
        """Apply an event of the phase table.

        Raises: LedgerError if the event is impossible in this phase.
        """
        self.phase = next_phase(self.phase, event)

    def join(self) -> None:
        """Order the sequence in the batch by priority, whatever the source of its blocks; it must be in no queue."""
        self.order = (self._rank, self.order[1])

    @property
    def _rank(self) -> int:
        return 0 if self.spec.line else self.spec.priority

    def append(self, tokens: tuple[int, ...]) -> None:
        """Add sampled tokens. Effects: grows `output` and thereby `tokens`."""
        self.output.extend(tokens)

    def learn_hashes(self, hashes: tuple[BlockHash, ...]) -> None:
        """Append prefix hashes of the next blocks, computed by another party. Effects: extends `hashes`."""
        self.hashes.extend(hashes)

    def note_masked(self, fed: int) -> None:
        """Record that a step without some experts has fed this many tokens, which `num_computed` does not include."""
        self.masked_from = min(self.masked_from, self.num_computed)
        self.masked_tokens += fed

    def reusable(self, tokens: int) -> int:
        """How many of these leading tokens have KV that other sequences may use."""
        return min(tokens, self.masked_from)

    def take_masked(self) -> int:
        """Tokens computed while experts were masked, since the last call."""
        masked, self.masked_tokens = self.masked_tokens, 0
        return masked

    def take_preempted(self) -> int:
        """Number of preemptions since the last call."""
        preempted, self.preempted = self.preempted, 0
        return preempted

    def restart(self) -> None:
        """Reset the computed state but keep the output, as for a preempted sequence.

        Effects: counts the preemption; the caller has released the blocks.
        """
        self.num_computed = 0
        self.masked_from = NEVER_MASKED
        self.num_published = 0
        self.next_full = 0
        self.num_slid = 0
        self.preempted += 1
        self.drafts = ()
        self.prompt_logprobs.clear()
