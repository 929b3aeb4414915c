"""The life of a draining instance: it repeats its offers, never ends with a sequence inside, and always ends."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.instance.core.life import (
    OFFER_PERIOD_S,
    STORE_DEADLINE_S,
    BeginLeaving,
    Inside,
    InstanceLife,
    LifeEffect,
    LifePhase,
    Stored,
    Wake,
)

STOP, OFFER, STORES, GO = LifeEffect.STOP_ADMITTING, LifeEffect.OFFER, LifeEffect.AWAIT_STORES, LifeEffect.GO


def test_what_nobody_takes_is_offered_again_until_it_ends() -> None:
    life = InstanceLife()
    assert life.on(Inside(2), 1.0) == []
    assert life.on(BeginLeaving(30.0), 1.0) == [STOP]
    assert life.on(BeginLeaving(0.0), 2.0) == [], "it leaves already"
    assert life.on(Wake(), 30.9) == []
    assert life.on(Wake(), 31.0) == [OFFER]
    assert life.next_wake() == 31.0 + OFFER_PERIOD_S
    assert life.on(Wake(), 33.0) == [OFFER]
    assert life.on(Inside(0), 33.5) == [STORES]
    assert life.on(Inside(1), 33.6) == [], "one was taken back"
    assert life.phase is LifePhase.DRAINING
    assert life.on(Inside(0), 34.0) == [STORES]
    assert life.on(Stored(), 34.1) == [GO]
    assert life.next_wake() is None


def test_stores_that_never_end_hold_nobody() -> None:
    life = InstanceLife()
    assert life.on(BeginLeaving(30.0), 0.0) == [STOP, STORES]
    assert life.on(Wake(), STORE_DEADLINE_S) == [GO]


class LifeMachine(RuleBasedStateMachine):
    """State machine with events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.life, self.now, self.inside, self.refuses = InstanceLife(), 0.0, 0, False

    def tell(self, event: Inside | BeginLeaving | Stored | Wake) -> None:
        effects = self.life.on(event, self.now)
        assert effects.count(STOP) == (isinstance(event, BeginLeaving) and not self.refuses)
        self.refuses = self.life.leaving
        assert OFFER not in effects or self.inside
        assert GO not in effects or not self.inside

    @precondition(lambda self: self.life.phase is not LifePhase.GONE)
    @rule(sequences=st.integers(0, 2))
    def count(self, sequences: int) -> None:
        self.inside = sequences
        self.tell(Inside(sequences))

    @rule(drain_s=st.floats(0.0, 9.0))
    def leave(self, drain_s: float) -> None:
        self.tell(BeginLeaving(drain_s))

    @rule()
    def stored(self) -> None:
        self.tell(Stored())

    @rule(seconds=st.floats(0.0, 9.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Wake())

    @invariant()
    def is_sound(self) -> None:
        self.life.check()
        wake = self.life.next_wake()
        assert wake is None or wake > self.now - 9.0


TestLife = LifeMachine.TestCase
