"""Loss of a whole host under streams, each compared token by token: none may fail, and how long each stands still.

Hosts made of namespaces: a head that serves nothing and keeps its state in a Redis, two workers, a client. `head`: the
head is powered off for `--away` seconds and replaced by an empty one. `kill`: a worker is powered off and replaced.
`freeze`, `cut`: all its processes are stopped, or its cable is out, for `--away` seconds. Two halves that have met
again must not both have an NPU, or the name of a memory server. Needs root.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from serving.config.health import HealthConfig
from serving.tools.chaos.answer import StreamedAnswer
from serving.tools.chaos.findings import FELT_S, ChaosFindings, Pauses, find, least_gap_s
from serving.tools.chaos.result import ChaosRun
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.deploy.supervised import (
    HEAD,
    HEAD_ADDRESS,
    WORKERS,
    Streams,
    Supervised,
    dashboard,
    supervised,
    without_head,
)

CONFIG = Path(__file__).resolve().parents[1] / "deploy" / "losses.toml"
SURVIVOR, VICTIM = WORKERS
QUIET_S = 5.0
GOAL_S = 5.0
TOKENS = 120


def whole(status: dict[str, Any]) -> bool:
    """Whether every pool has what it should have, on two workers that live."""
    living = [host for host in status["hosts"] if host["lost_s"] is None and host["npus"]]
    pools = [[one for one in pool["replicas"] if one["state"] == "serving"] for pool in status["pools"]]
    return len(living) == 2 and all(len(there) == 2 for there in pools) and len(status["kvcache"]["servers"]) == 2


def twice(status: dict[str, Any]) -> list[str]:
    """NPUs and names of memory servers that two have."""
    npus = [npu for pool in status["pools"] for replica in pool["replicas"] for npu in replica["npus"]]
    names = [server["name"] for server in status["kvcache"]["servers"]]
    return sorted({one for one in [*npus, *names] if (npus + names).count(one) > 1})


def spread(on: Supervised, status: dict[str, Any]) -> str:
    """Where the replicas of each pool are, and on which workers a gateway answers."""
    rows = {pool["name"]: [one["npus"][0].partition(".")[0] for one in pool["replicas"]] for pool in status["pools"]}
    rows["kvcache"] = [one["name"] for one in status["kvcache"]["servers"]]
    doors = [name for name in WORKERS if not on.said(SURVIVOR, "curl", "-sf", f"{on.url(name)}/-/healthz")[0]]
    return f"{rows}, gateways on {', '.join(doors)}"


@contextmanager
def begun_hosts(folder: Path) -> Iterator[Supervised]:
    """Hosts with a Ray across them."""
    with supervised(folder, *WORKERS) as on:
        on.together()
        progress("Ray has all hosts")
        yield on


def deploy(on: Supervised) -> None:
    """The system, anew: Serve spreads replicas when it starts them all, and leaves them where they are later."""
    on.cloudmatrix(SURVIVOR, "down", "--address", HEAD_ADDRESS)
    said = on.cloudmatrix(SURVIVOR, "serve", "--address", HEAD_ADDRESS, "--config", str(CONFIG))
    progress(said.splitlines()[0])
    progress(spread(on, on.until(SURVIVOR, whole)))


def lose_worker(on: Supervised, kind: str, away_s: float, doubled: list[str]) -> tuple[ChaosRun, list[float]]:
    """One loss under streams, until all is whole again. Returns: what clients saw, and how long streams stopped [s]."""
    with Streams(on, SURVIVOR, 2.0, TOKENS) as streams:
        time.sleep(QUIET_S)
        fault = time.monotonic()
        if kind == "kill":
            on.kill(VICTIM)
            done = time.monotonic()
            on.until(SURVIVOR, lambda status: any(host["lost_s"] is not None for host in status["hosts"]))
            progress(f"noticed as lost after {time.monotonic() - fault:.1f} s")
            on.replace(VICTIM)
        else:
            on.hosts.does(kind, VICTIM)
            done = time.monotonic()
            while time.monotonic() < fault + away_s:
                doubled += twice(on.status(SURVIVOR))
                time.sleep(0.5)
            on.hosts.does("thaw" if kind == "freeze" else "join", VICTIM)

        def settled(status: dict[str, Any]) -> bool:
            doubled.extend(twice(status))
            return whole(status)

        status = on.until(SURVIVOR, settled)
        progress(f"whole again after {time.monotonic() - fault:.1f} s; {spread(on, status)}")
        time.sleep(QUIET_S)
    assert streams.run is not None
    return streams.run, [pause for answer in streams.run.answers for pause in stops(answer, fault, done)]


def stops(answer: StreamedAnswer, begun: float, done: float) -> list[float]:
    """How long each choice of an answer got no token because of a fault, from its begin on [s]."""
    if not answer.ask.streamed or answer.sent_s > begun or answer.ended_s < begun:
        return []
    found = []
    for choice in answer.choices:
        at = [answer.sent_s, *(moment for moment, _ in choice.arrivals)]
        gaps = [b - max(a, begun) for a, b in pairwise(at) if b > begun and a < done + FELT_S]
        found += [gap for gap in gaps if gap > least_gap_s(answer)]
    return found


def lose_head(on: Supervised, away_s: float, requests: int) -> ChaosRun:
    """The head is off for so long, and is then an empty one."""
    with Streams(on, SURVIVOR, requests / away_s, TOKENS) as streams:
        time.sleep(QUIET_S)
        fault = time.monotonic()
        on.kill(HEAD)
        for words in without_head(on, SURVIVOR):
            begun = time.monotonic()
            code, said = on.said(SURVIVOR, "cloudmatrix", *words)
            progress(f"{words[0]}: {code} after {time.monotonic() - begun:.1f} s: {said.strip()[-300:]}")
        while time.monotonic() < fault + away_s:
            time.sleep(1.0)
        progress(f"head off for {time.monotonic() - fault:.0f} s")
        on.replace(HEAD)
        back = time.monotonic()
        while on.said(SURVIVOR, "cloudmatrix", "scale", "decode", "3", "--wait", *dashboard(on))[0] != 0:
            assert time.monotonic() < back + 300, "scaling does not work again"
        progress(f"scaling works {time.monotonic() - back:.1f} s after the new head began")
        time.sleep(QUIET_S)
    assert streams.run is not None
    return streams.run


def told(found: ChaosFindings, run: ChaosRun) -> None:
    """Say what became of the requests."""
    late = [
        answer.choices[0].arrivals[0][0] - answer.sent_s
        for answer in run.answers
        if answer.ask.streamed and answer.choices[0].arrivals
    ]
    progress(
        f"{found.sent} sent, {found.finished} finished, {found.failed} failed {found.reasons}, {found.exact} of"
        f" {found.compared} exact, {found.resumptions} resumed; first tokens"
        f" {Pauses.of(late)}"
    )
    for text in run.differences.values():
        progress(text)


class Losses:
    """What became of all losses of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.findings: list[ChaosFindings] = []
        self.pauses: list[float] = []
        self.doubled: list[str] = []
        self.left: list[str] = []

    def add(self, run: ChaosRun, pauses: list[float], doubled: list[str], left: list[str]) -> None:
        """One more loss."""
        progress(f"streams that stopped: {sorted(round(pause, 2) for pause in pauses)}")
        found = find(run)
        told(found, run)
        self.findings.append(found)
        self.pauses += pauses
        self.doubled += doubled
        self.left += left

    def figures(self) -> list[Figure]:
        """Figures to report."""
        counts = {
            "failed": sum(one.failed for one in self.findings),
            "different": sum(one.compared - one.exact for one in self.findings),
            "left behind": len(self.left),
            "there twice": len(self.doubled),
        }
        figures = [Figure(f"{self.kind}: requests sent", "", tuple(float(one.sent) for one in self.findings))]
        figures += [Figure(f"{self.kind}: {name}", "", (float(count),), goal=0.0) for name, count in counts.items()]
        p99 = Pauses.of(self.pauses).p99_s
        if self.kind != "head" and p99 is not None:
            name = f"{self.kind}: fault to next token, p99 of {len(self.pauses)} streams"
            figures.append(Figure(name, "s", (p99,), goal=HealthConfig().silence_s + GOAL_S))
        return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_host_loss", __doc__, repeats=3)
    parser.add_argument("kinds", choices=("head", "kill", "freeze", "cut"), nargs="+", help="one after the other")
    parser.add_argument("--away", type=float, default=60.0, metavar="S", help="how long the host is away (default 60)")
    parser.add_argument("--requests", type=int, default=500, help="of `head`, while it is away (default 500)")
    args = parser.parse_args()
    found = conditions(None, kinds=args.kinds, away_s=args.away, tokens=TOKENS)
    show_conditions(found)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="host-loss-") as folder, begun_hosts(Path(folder)) as on:
        for kind in args.kinds:
            losses = Losses(kind)
            for _ in range(1 if kind == "head" else args.repeats):
                doubled: list[str] = []
                pauses: list[float] = []
                deploy(on)
                if kind == "head":
                    run = lose_head(on, args.away, args.requests)
                else:
                    run, pauses = lose_worker(on, kind, args.away, doubled)
                losses.add(run, pauses, doubled, on.leaks(SURVIVOR))
            figures += losses.figures()
    report("bench_host_loss", found, figures)


if __name__ == "__main__":
    main()
