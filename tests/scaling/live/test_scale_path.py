"""Results for a caller of the path: responses, refusals with their number, and timeouts, each as one kind of error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray

from serving.errors import ScaleError
from serving.scaling.live import scale_path
from serving.values.scaling_operations import (
    HoldPool,
    PoolOperation,
    ReadDecisions,
    ReadPools,
    ReleasePool,
    ScaleAnswer,
    ScalePool,
    ScaleRefusal,
)

DONE = ScaleAnswer("decode", 1, 2, 3, 0.0, "done")


class Method:
    """An actor's method with a scripted response."""

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self.remote = answer


class Board:
    """An actor's handle; every method returns the same response, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._answer = answer

    def __getattr__(self, name: str) -> Method:
        async def remote(*arguments: Any) -> Any:
            self.asked.append((name, *arguments))
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return Method(remote)


def found(monkeypatch: pytest.MonkeyPatch, answer: Any, get: Callable[..., Any] | None = None) -> Board:
    """A board that Ray finds, or another result; calls have half a second."""
    board = Board(answer)
    for owner, name, other in (
        (ray, "get_actor", get or (lambda name, namespace: board)),
        (scale_path, "CALL_DEADLINE_S", 0.5),
    ):
        monkeypatch.setattr(owner, name, other)
    return board


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (ScalePool("decode", 2, None, "cli"), DONE),
        (HoldPool("decode", 60.0, "page"), DONE),
        (ReleasePool("decode", "page"), DONE),
        (ReadPools(), {"pools": []}),
        (ReadDecisions("decode", 3, 10), [{"id": 4}]),
    ],
)
def test_operations_and_answers_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, operation: PoolOperation[object], answer: object
) -> None:
    board = found(monkeypatch, answer)
    assert asyncio.run(scale_path.ask(operation)) == answer
    assert board.asked == [("answer", operation)]


def test_a_refusal_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ScaleRefusal("no_room", "too many", 3))
    with pytest.raises(ScaleError, match="too many") as refused:
        asyncio.run(scale_path.ask(ScalePool("decode", 9, None, "cli")))
    assert (refused.value.kind, refused.value.fits) == ("no_room", 3)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str, namespace: str) -> Any:
        raise ValueError(name)

    found(monkeypatch, None, nobody)
    with pytest.raises(ScaleError, match="no CloudMatrix system") as missing:
        asyncio.run(scale_path.ask(ReadPools()))
    assert missing.value.kind == "no_system"


@pytest.mark.parametrize("trouble", [ray.exceptions.ActorDiedError(), TimeoutError()])
def test_silence_ends(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    found(monkeypatch, trouble)
    with pytest.raises(ScaleError, match="does not answer") as silent:
        asyncio.run(scale_path.ask(HoldPool("decode", None, "page")))
    assert silent.value.kind == "unavailable"


def test_each_question_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen:
        @property
        def answer(self) -> Method:
            return Method(lambda _operation: asyncio.sleep(60))

    found(monkeypatch, None, lambda name, namespace: Frozen())
    with pytest.raises(ScaleError, match="TimeoutError"):
        asyncio.run(scale_path.ask(ReadPools()))


def test_a_board_that_a_deployment_makes_anew_is_worth_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(name: str, namespace: str) -> Any:
        if name == scale_path.BOARD:
            raise ValueError("there is no such actor")
        return object()

    found(monkeypatch, DONE, get)
    with pytest.raises(ScaleError, match="try again") as refused:
        asyncio.run(scale_path.ask(ReadPools()))
    assert refused.value.kind == "unavailable"
