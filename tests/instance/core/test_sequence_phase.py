"""The phase table: complete, and strict."""

from itertools import product

import pytest

from serving.errors import LedgerError
from serving.instance.core.sequence import TRANSITIONS, PhaseEvent, SequencePhase, next_phase


def test_every_pair_is_either_listed_or_refused() -> None:
    for phase, event in product(SequencePhase, PhaseEvent):
        if event in TRANSITIONS[phase]:
            assert next_phase(phase, event) is TRANSITIONS[phase][event]
        else:
            with pytest.raises(LedgerError, match=f"a {phase.value} sequence"):
                next_phase(phase, event)


def test_every_phase_can_reach_the_end_and_nothing_leaves_it() -> None:
    assert TRANSITIONS[SequencePhase.FINISHED] == {}
    for phase in SequencePhase:
        seen, todo = {phase}, [phase]
        while todo:
            for following in TRANSITIONS[todo.pop()].values():
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        assert SequencePhase.FINISHED in seen


def test_every_event_is_used() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(PhaseEvent)
