"""Step 3: `kill -9` in the middle of a response, which continues token for token."""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.report import numbers
from loadgen.report.chart import Axis, Line, LineChart, Marks
from loadgen.report.table import Table, columns, table_of
from serving.tools.chaos.asks import CHAT, Ask, StreamedAnswer, difference
from serving.tools.chaos.chaos_client import GatewayEndpoint, fetch
from serving.tools.chaos.targets import Target, listed, send, target_of
from serving.tools.demo.stage import DemoSystem, Stage, Step, StepError, StepReport
from serving.values.scaling_operations import ReadEvents

QUESTION = "Tell me a story about a clever rabbit and a garden."
FIELDS = {"max_tokens": 300, "temperature": 0.6, "seed": 5}
"""Drawn, not the likeliest words: the draws must be the same ones after the kill."""
KILL_AT = 70
"""Tokens that have come when the kill does."""
DEADLINE_S = 60.0


@dataclass(slots=True)
class Killed:
    """One stream and its kill. `at_s`: on the clock of the response's arrivals [s]; None = the kill did not happen."""

    answer: StreamedAnswer
    target: Target | None = None
    at_s: float | None = None
    shown: int = field(default=0)
    """Characters of the text that have been shown."""


def run(stage: Stage) -> StepReport:
    """Send an undisturbed request, send it again and kill the decode instance. Raises: UnavailableError, StepError."""
    system = stage.system
    with stage.narrator.waiting("asking once undisturbed, to know the right answer"):
        reference = _ask(system, None)
    stage.narrator.question(QUESTION)
    killed = Killed(StreamedAnswer(reference.ask, time.monotonic()))
    _ask(system, lambda answer: _watch(stage, killed), killed.answer)
    stage.narrator.line()
    with stage.narrator.waiting("waiting for its replacement"):
        if not system.pools.wait("decode", DEADLINE_S):
            raise StepError(f"the decode instance was not replaced within {DEADLINE_S:.0f} s")
    return kill_report(reference, killed, system.pools.events(ReadEvents("decode")))


def _ask(
    system: DemoSystem, enough: Callable[[StreamedAnswer], bool] | None, answer: StreamedAnswer | None = None
) -> StreamedAnswer:
    """One whole response. Raises: StepError if it is invalid."""
    body = {
        "model": system.model, "messages": [{"role": "user", "content": QUESTION}], **FIELDS, "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    answer = answer or StreamedAnswer(Ask(0, "story", CHAT, body), time.monotonic())
    asyncio.run(fetch(GatewayEndpoint.of(system.url), answer, DEADLINE_S, enough))
    if answer.outcome != "finished":
        raise StepError(f"the response was not completed: {answer.reason}")
    return answer


def _watch(stage: Stage, killed: Killed) -> bool:
    """Print the received text, and kill at the right time. Returns: False, the stream is read to its end."""
    choice = killed.answer.choices[0]
    stage.narrator.stream(choice.text[killed.shown :])
    killed.shown = len(choice.text)
    if killed.target is None and len(choice.tokens) >= KILL_AT:
        killed.target = _decode_instance(stage.system)
        if not send(killed.target, signal.SIGKILL):
            raise StepError(f"{killed.target.name} had exited before it could be killed")
        killed.at_s = time.monotonic()
        stage.narrator.line()
        stage.narrator.event(f"kill -9 {killed.target.pid}   ({killed.target.name}, which was generating this)")
    return False


def _decode_instance(system: DemoSystem) -> Target:
    """The one decode instance. Raises: StepError if there is none."""
    for pool, name, pid in listed(system.status()):
        target = target_of(pool, name, pid, system.session) if pool == "decode" else None
        if target is not None:
            return target
    raise StepError("there is no decode instance to kill")


def pause_s(answer: StreamedAnswer, at_s: float) -> float:
    """Longest gap between tokens that ended after a moment [s]."""
    times = [answer.sent_s, *(at for at, _ in answer.choices[0].arrivals)]
    return max((b - a for a, b in itertools.pairwise(times) if b >= at_s), default=0.0)


def kill_report(reference: StreamedAnswer, killed: Killed, events: Sequence[dict[str, Any]] = ()) -> StepReport:
    """The findings.

    Args:
        events: of the pool, latest first, as in the dashboard.
    Raises: StepError if the kill did not happen.
    """
    if killed.at_s is None or killed.target is None:
        raise StepError("the response was complete before the kill")
    answer = killed.answer
    other = difference(answer, reference)
    pause = numbers.duration(pause_s(answer, killed.at_s))
    count = len(answer.choices[0].tokens)
    same = f"all {count} tokens are those of the undisturbed answer" if other is None else f"it differs: {other}"
    rows = [
        ["undisturbed", len(reference.choices[0].tokens), 0, numbers.duration(reference.ended_s - reference.sent_s)],
        ["killed", count, answer.resumptions, numbers.duration(answer.ended_s - answer.sent_s)],
    ]
    return StepReport(
        f"The stream paused for {pause} and went on; {same}.",
        ("pause of the stream", pause),
        (f"{count} tokens, token-exact" if other is None else "not token-exact", f"{killed.target.name} was killed"),
        problem="" if other is None else f"the answer after the kill is another one: {other}",
        quotes=(f"> {QUESTION}", answer.choices[0].text),
        tables=(table_of(columns("answer", "tokens", "times resumed", "lasted"), rows), _event_table(events)),
        charts=(_chart(reference, answer, killed.at_s),),
    )


def _event_table(events: Sequence[dict[str, Any]]) -> Table:
    heads = columns("event", "instance", "what happened", text=("instance",), long=("what happened",))
    return table_of(heads, [[event["kind"], event["replica"], event["text"]] for event in reversed(events)])


def _chart(reference: StreamedAnswer, answer: StreamedAnswer, at_s: float) -> LineChart:
    before, after = _curve(reference), _curve(answer)
    xs = sorted({*before, *after})
    return LineChart(
        id="kill",
        title="Tokens received",
        note="The flat part is the pause: without a decode instance prefill decodes, too, but only after two seconds.",
        x=Axis(unit="s", label="since the question", low=0.0),
        y=Axis(unit="count", low=0.0),
        xs=xs,
        lines=[
            Line(name="undisturbed", values=[before.get(x) for x in xs], color="grey", dash=True),
            Line(name="killed in the middle", values=[after.get(x) for x in xs], color="blue"),
        ],
        marks=[Marks(name="kill -9", color="red", xs=[round(at_s - answer.sent_s, 3)])],
        bridge=True,
    )


def _curve(answer: StreamedAnswer) -> dict[float, float]:
    """Tokens of one stream, by the time since its question [s]."""
    found, count = {0.0: 0.0}, 0
    for at, tokens in answer.choices[0].arrivals:
        count += tokens
        found[round(at - answer.sent_s, 3)] = float(count)
    return found


STEP = Step(
    "kill",
    "Kill something",
    "In the middle of an answer the only decode instance is killed with SIGKILL. The gateway keeps a journal of every "
    "sequence and continues it elsewhere: after two seconds without any decode instance on the prefill instance, until "
    "the replacement is there. A draw depends on the request's seed and the position alone, so the "
    "tokens must be those of an undisturbed answer.",
    ("cloudmatrix status", "kill -9 PID"),
    run,
)
