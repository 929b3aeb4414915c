"""Consistency check of the engine: every block is free, cached or referenced exactly as its sequences require."""

from collections.abc import Collection, Iterable, Sequence

from serving.errors import LedgerError
from serving.ids import BlockId
from serving.instance.core.handoffs import HeldHandoffs
from serving.instance.core.scheduler import PlannedStep, Scheduler
from serving.instance.core.sequence import LiveSequence, SequencePhase

_P = SequencePhase
_BLOCKLESS = (_P.WAITING, _P.ADOPTING)


def check_engine(
    sequences: Collection[LiveSequence],
    scheduler: Scheduler,
    handoffs: HeldHandoffs,
    in_flight: PlannedStep | None,
    pinned: Iterable[Sequence[BlockId]] = (),
) -> None:
    """Check that queues, phases, tickets, the running plan and the block pool are consistent.

    Args:
        pinned: blocks kept for the KV-cache pool, in addition to those of the sequences.
    Raises: LedgerError if they are inconsistent.
    Takes time linear in sequences and blocks; meant for tests and idle moments.
    """
    flying = in_flight.sequences if in_flight is not None else []
    places = {
        "waiting": list(scheduler.waiting),
        "running": list(scheduler.running),
        "pulling": list(scheduler.pulling),
        "fetching": list(scheduler.fetching),
        "held": list(handoffs.held.values()),
        "flying": [s for s in flying if s.phase is _P.CLOSING],
    }
    allowed = {
        "waiting": _BLOCKLESS,
        "running": (_P.PREFILLING, _P.DECODING),
        "pulling": (_P.PULLING, _P.CLOSING),
        "fetching": (_P.FETCHING, _P.CLOSING),
        "held": (_P.HELD,),
        "flying": (_P.CLOSING,),
    }
    placed = [sequence for group in places.values() for sequence in group]
    if len(placed) != len(sequences) or {id(s) for s in placed} != {id(s) for s in sequences}:
        raise LedgerError(f"{len(sequences)} sequences are known, {len(placed)} places are in use")
    for place, group in places.items():
        for sequence in group:
            if sequence.phase not in allowed[place]:
                raise LedgerError(f"sequence {sequence.sequence_id} is {sequence.phase.value} among the {place}")
    for sequence in sequences:
        scheduler.blocks.check(sequence)
        _check_sequence(sequence, flying=sequence in flying)
    scheduler.blocks.pool.check([*(scheduler.blocks.held(sequence) for sequence in sequences), *pinned])


def _check_sequence(sequence: LiveSequence, *, flying: bool) -> None:
    name = sequence.sequence_id
    if sequence.in_flight != flying:
        raise LedgerError(f"sequence {name}: in-flight mark {sequence.in_flight}, in the running plan {flying}")
    if sequence.phase in _BLOCKLESS and sequence.blocks:
        raise LedgerError(f"a {sequence.phase.value} sequence has {len(sequence.blocks)} blocks")
    if sequence.tokens.output is not sequence.output:
        raise LedgerError(f"sequence {name}: tokens do not match its prompt and output")
    if sequence.phase in (_P.DECODING, _P.HELD) and sequence.num_missing != 1:
        raise LedgerError(f"a {sequence.phase.value} sequence misses {sequence.num_missing} tokens")
