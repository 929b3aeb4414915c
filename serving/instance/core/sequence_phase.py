"""The phases of a sequence inside one engine, as a table.

    add ──► WAITING ──admit──► PREFILLING ──prompt done──► DECODING ──► FINISHED
               ▲                 │  │                       │
               └────preempt──────┘  └──prompt held──► HELD ◄┤hand on
               │                                       └────┼─────────► FINISHED
               └────preempt─────────────────────────────────┘
    adopt ─► ADOPTING ──pull start──► PULLING ──pull done──► DECODING
                                                 └─────────► PREFILLING (tokens beyond the handoff are recomputed)
    WAITING ──fetch start──► FETCHING ──fetch done──► PREFILLING

FETCHING: blocks are reserved, and the leading ones are being filled from the KV-cache pool. HELD: prefill is done, or
the instance drains; the blocks wait to be pulled and acknowledged, or to be taken over by a sequence that continues
here. ADOPTING: another sequence holds the blocks, usually at another instance, and no capacity is free yet. CLOSING:
the sequence has ended for all other parties, but a step, a pull or a fetch may still write into its blocks, which
therefore cannot be reused yet. An event missing in the table is a bug: `LedgerError`.
"""

from enum import Enum

from serving.errors import LedgerError


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
