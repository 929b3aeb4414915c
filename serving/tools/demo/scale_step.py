"""Step 4: one more decode instance, while a response streams."""

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of
from serving.tools.chaos.asks import CHAT, Ask, StreamedAnswer
from serving.tools.chaos.chaos_client import GatewayEndpoint, fetch
from serving.tools.demo.kill_step import pause_s
from serving.tools.demo.stage import DemoSystem, Stage, Step, StepError, StepReport
from serving.values.scaling_operations import ReadDecisions, ScalePool

POOL = "decode"
DEADLINE_S = 60.0
_TOKENS = 1500
"""More than come while a pool grows."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A change of a pool's size. `gap_s`: longest gap of the stream during the change [s]; `npus`: before, after."""

    before: int
    target: int
    took_s: float
    gap_s: float
    npus: tuple[int, int]
    decision: dict[str, Any]


def run(stage: Stage) -> StepReport:
    """Scale by one and wait. Raises: ScaleError, UnavailableError, StepError."""
    system = stage.system
    status = system.status()
    wanted = next(pool["target_replicas"] for pool in status["pools"] if pool["name"] == POOL) + 1
    with _Stream(system) as stream:
        begun = time.monotonic()
        stage.narrator.event(f"scale {POOL} to {wanted}")
        answer = system.pools.scale(ScalePool(POOL, wanted, None, "cli"))
        stage.narrator.line(answer["message"])
        with stage.narrator.waiting("waiting until they serve"):
            if not system.pools.wait(POOL, DEADLINE_S):
                raise StepError(f"{POOL} has not {wanted} serving replicas after {DEADLINE_S:.0f} s")
        took = time.monotonic() - begun
    decisions = system.pools.decisions(ReadDecisions(POOL))
    npus = (status["npus"]["used"], system.status()["npus"]["used"])
    return scale_report(
        Scaled(answer["before"], answer["target"], took, stream.gap_s(begun), npus, decisions[0] if decisions else {})
    )


class _Stream:
    """A long response, read on a separate thread until the block ends."""

    def __init__(self, system: DemoSystem) -> None:
        body = {
            "model": system.model, "messages": [{"role": "user", "content": "Tell me a long story."}],
            "max_tokens": _TOKENS, "seed": 1, "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        self._endpoint = GatewayEndpoint.of(system.url)
        self._answer = StreamedAnswer(Ask(0, "beside", CHAT, body), time.monotonic())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def gap_s(self, since_s: float) -> float:
        """Longest time without a token [s]. Raises: StepError if the stream has failed."""
        if self._answer.outcome == "failed":
            raise StepError(f"the stream that ran at the same time has failed: {self._answer.reason}")
        return pause_s(self._answer, since_s)

    def _read(self) -> None:
        asyncio.run(fetch(self._endpoint, self._answer, DEADLINE_S, lambda _: self._over.is_set()))


def scale_report(scaled: Scaled) -> StepReport:
    """The findings."""
    took, gap = numbers.duration(scaled.took_s), numbers.duration(scaled.gap_s)
    return StepReport(
        f"{scaled.target} instead of {scaled.before} serve after {took}; the stream that ran at the same time never "
        f"waited longer than {gap} for a token.",
        ("until both serve", took),
        (f"{scaled.before} to {scaled.target} decode instances", f"{scaled.npus[0]} to {scaled.npus[1]} NPUs in use"),
        tables=(_decision_table(scaled.decision),) if scaled.decision else (),
        problem="" if scaled.decision else "the change is not among the decisions",
    )


def _decision_table(decision: dict[str, Any]) -> Table:
    heads = columns("pool", "change", "kind", "by", "why", text=("change", "kind", "by"), long=("why",))
    change = f"{decision['before']} to {decision['target']}"
    return table_of(heads, [[decision["pool"], change, decision["kind"], decision["by"], decision["reason"]]])


STEP = Step(
    "scale",
    "Scale",
    "Each pool grows and shrinks by itself: by this command, by a mouse on the page /pools, by REST, or by the "
    "autoscaler, which plans them together. Here decode gets one instance more while an answer streams.",
    ("cloudmatrix scale decode 2 --wait", "cloudmatrix decisions"),
    run,
)
