"""Constructed runs: streams with a pause in them, and its cause."""

from typing import Any

from serving.tools.chaos.asks import COMPLETIONS, Ask, ChoiceSoFar, StreamedAnswer
from serving.tools.chaos.chaos_result import ChaosRun, Event

BEGUN_S, STEP_S = 1000.0, 0.02


def killed_stream(
    before: int, after: int, pause_s: float = 0.3, replicas: tuple[str, ...] = ("p#1", "d#1", "p#2", "d#2")
) -> StreamedAnswer:
    """Tokens every 20 ms from 1001 s on, with one pause."""
    end = 1001 + before * STEP_S + pause_s
    times = [1001 + at * STEP_S for at in range(before)] + [end + at * STEP_S for at in range(after)]
    choice = ChoiceSoFar([1] * len(times), finish="length", arrivals=[(at, 1) for at in times])
    ask = Ask(0, "greedy", COMPLETIONS, {"stream": True})
    return StreamedAnswer(
        ask, 1000.5, None, [choice], "finished", ended_s=times[-1], usage={"resumptions": 1}, replicas=replicas
    )


def loss(at_s: float, kind: Any = "kill", target: str = "d#1", number: int = 1, pool: str = "decode") -> Event:
    """The loss of a replica this many seconds after the start of the load."""
    return Event(number, kind, at_s, BEGUN_S + at_s, at_s, pool, target, 7, fate="replaced", replaced_s=4.0)


def run_of(*answers: StreamedAnswer, events: tuple[Event, ...]) -> ChaosRun:
    """A run with these responses and faults."""
    return ChaosRun("test", 0, "abc", "model", BEGUN_S, 60.0, answers=list(answers), events=list(events))
