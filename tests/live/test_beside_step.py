"""Requests that arrive while a step runs do not wait for its end."""

import threading
from collections.abc import Iterator

import pytest

from serving.instance.core.settings import EngineRole
from serving.values.news import Adopted, Prefilled, Refused
from serving.values.orders import Release
from serving.values.step_plan import StepPlan, StepResult
from tests.fakes.transport import FakeFabric
from tests.live.rig import NOBODY, PATIENCE_S, Rig, spec, wait_for


class Gate:
    """Blocks an executor's steps until it is opened."""

    def __init__(self, rig: Rig) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()
        self._execute = rig.executor.execute
        rig.executor.execute = self.execute  # type: ignore[method-assign]

    def execute(self, plan: StepPlan) -> StepResult:
        self.inside.set()
        assert self.open.wait(PATIENCE_S)
        return self._execute(plan)


@pytest.fixture
def rigs() -> Iterator[tuple[Rig, Rig]]:
    fabric = FakeFabric()
    pair = Rig(EngineRole.PREFILL, fabric, "prefill"), Rig(EngineRole.DECODE, fabric, "decode")
    for rig in pair:
        rig.loop.start()
    yield pair
    for rig in pair:
        rig.loop.stop()
        rig.assert_ended()


def test_a_handoff_is_pulled_while_a_step_runs(rigs: tuple[Rig, Rig]) -> None:
    prefill, decode = rigs
    prefill.add(spec("s@1"))
    ready: Prefilled = prefill.wait(Prefilled)
    gate = Gate(decode)
    decode.add(spec("other"))
    assert gate.inside.wait(PATIENCE_S)
    decode.adopt(spec("s@2", output=ready.first.tokens), ready.ticket)
    assert decode.wait(Adopted).sequence_id == "s@2"
    assert not decode.steps, "the step still runs"
    gate.open.set()
    prefill.loop.post(Release(ready.ticket.ticket_id))
    prefill.quiet()
    decode.quiet()
    fed = [tokens for tokens, _ in decode.steps]
    assert fed[:2] == [10, 2], "the step that was running, then both together"


def test_what_comes_during_a_step_shows_at_once_and_is_refused_at_once(rigs: tuple[Rig, Rig]) -> None:
    _, decode = rigs
    gate = Gate(decode)
    decode.add(spec("first"))
    assert gate.inside.wait(PATIENCE_S)
    decode.add(spec("second"))
    wait_for(lambda: decode.loop.snapshot.waiting == 1, "it is seen to wait")
    decode.add(spec("endless", prompt=10_000))
    assert decode.wait(Refused).sequence_id == "endless"
    gate.open.set()
    decode.quiet()


def test_a_bug_in_an_order_is_as_bad_during_a_step_as_between_steps(rigs: tuple[Rig, Rig]) -> None:
    _, decode = rigs
    gate = Gate(decode)
    decode.add(spec("first"))
    assert gate.inside.wait(PATIENCE_S)
    decode.at[NOBODY] = lambda: 1 // 0
    decode.loop.post(NOBODY)
    wait_for(lambda: decode.loop.progress_age_s() == float("inf"), "unhealthy")
    gate.open.set()
    decode.assert_ended()
