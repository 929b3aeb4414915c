"""The driver of operations executes their effects on links: all requests first, and nothing on a wrong connection."""

from collections.abc import Sequence
from typing import Any

import pytest

from serving.errors import PoolTimeoutError, PoolUnreachableError
from serving.kvpool.core import messages as m
from serving.kvpool.core.operation import PoolAnswer, PoolAsk, PoolClose, PoolEffect, PoolEvent, PoolFailure, PoolPost
from serving.kvpool.live.link_driver import LinkDriver
from serving.values.pool_outcome import MissReason

STATS = m.List(0, 1)
ANSWER = m.Listed(())


class FakeLink:
    """A link that records its requests."""

    def __init__(self, name: str, log: list[str], *, prompt: bool = True, fails: str = "") -> None:
        self.name, self.prompt = name, prompt
        self.connection = 1
        self.welcome: object = "welcome"
        self._log = log
        self._fails = fails

    def _do(self, what: str) -> None:
        self._log.append(f"{what} {self.name}")
        if what == self._fails:
            raise PoolTimeoutError("too late") if what == "receive" else PoolUnreachableError("gone")

    def prepare(self, _until: float) -> None:
        """Connect."""
        self._do("prepare")

    def send(self, _message: m.Message, _until: float) -> None:
        """Send a request."""
        self._do("send")

    def receive(self, kind: type[m.Message], _until: float) -> m.Message:
        """Receive a response."""
        self._do("receive")
        assert kind is m.Listed
        return ANSWER

    def post(self, _message: m.Message, _until: float) -> None:
        """Post a message."""
        self._do("post")

    def close(self) -> None:
        """End the connection."""
        self._do("close")


class Script:
    """An operation with fixed effects, which records the results."""

    def __init__(self, *effects: PoolEffect, then: Sequence[PoolEffect] = ()) -> None:
        self._effects = effects
        self._then = then
        self.events: list[PoolEvent] = []

    def start(self, now: float) -> Sequence[PoolEffect]:
        """All effects at once."""
        del now
        return self._effects

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """The remaining effects, after the first event."""
        del now
        self.events.append(event)
        then, self._then = self._then, ()
        return then


def drive(links: Sequence[FakeLink], operation: Any, connections: dict[str, int] | None = None) -> list[PoolEvent]:
    by_name: Any = {link.name: link for link in links}
    LinkDriver(by_name, connections=connections).drive(operation)
    events: list[PoolEvent] = operation.events
    return events


def test_all_are_asked_before_any_answer_is_waited_for_and_the_prompt_ones_first() -> None:
    log: list[str] = []
    links = [FakeLink("a", log, prompt=False), FakeLink("b", log)]
    events = drive(links, Script(PoolAsk("a", STATS, 1.0), PoolAsk("b", STATS, 1.0)))
    assert log == ["prepare a", "prepare b", "send b", "send a", "receive b", "receive a"]
    assert events == [PoolAnswer("b", ANSWER), PoolAnswer("a", ANSWER)]


@pytest.mark.parametrize(
    ("fails", "reason"),
    [("prepare", MissReason.UNREACHABLE), ("send", MissReason.UNREACHABLE), ("receive", MissReason.TIMEOUT)],
)
def test_a_server_that_fails_keeps_no_other_one(fails: str, reason: MissReason) -> None:
    log: list[str] = []
    links = [FakeLink("a", log, fails=fails), FakeLink("b", log)]
    events = drive(links, Script(PoolAsk("a", STATS, 1.0), PoolAsk("b", STATS, 1.0)))
    assert events == [PoolFailure("a", reason), PoolAnswer("b", ANSWER)]


def test_a_failure_at_a_server_ends_what_else_the_list_wants_of_it() -> None:
    log: list[str] = []
    operation = Script(PoolPost("a", m.Promote((1,), 0.0), 1.0), PoolAsk("a", STATS, 1.0), then=[PoolClose("a")])
    assert drive([FakeLink("a", log, fails="post")], operation) == [PoolFailure("a", MissReason.UNREACHABLE)]
    assert log == ["post a", "close a"]


def test_leases_of_another_connection_are_not_released() -> None:
    log: list[str] = []
    release = PoolPost("a", m.ReleaseLeases((1,)), 1.0)
    assert drive([FakeLink("a", log)], Script(release), {"a": 7}) == []
    link = FakeLink("a", log)
    link.welcome = None
    assert drive([link], Script(release)) == []
    assert log == []
    drive([FakeLink("a", log)], Script(release), {"a": 1})
    assert log == ["post a"]


def test_after_an_unforeseen_failure_nothing_stays_booked() -> None:
    log: list[str] = []
    operation = Script(PoolAsk("a", m.Stats(), 1.0))  # there is no rule for its response
    with pytest.raises(KeyError):
        drive([FakeLink("a", log), FakeLink("b", log)], operation)
    assert log == ["send a", "close a", "close b"]
