"""Loss of a whole host under streams, each compared token by token: none may fail, and the pause of each is measured.

Hosts made of namespaces: a head without replicas that stores its state in Redis, two workers, a client. `head`: the
head is powered off for `--away` seconds and replaced by an empty one. `kill`: a worker is powered off and replaced.
`freeze`, `cut`: all its processes are stopped, or its network is cut, for `--away` seconds. When both halves meet
again, no NPU and no name of a memory server may exist twice. Needs root.
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from serving.config.health import HealthConfig
from serving.tools.chaos.asks import StreamedAnswer
from serving.tools.chaos.chaos_result import ChaosRun
from serving.tools.chaos.findings import FELT_S, ChaosFindings, Pauses, find, least_gap_s
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
    """Whether every pool is complete, on two living workers."""
    living = [host for host in status["hosts"] if host["lost_s"] is None and host["npus"]]
    pools = [[one for one in pool["replicas"] if one["state"] == "serving"] for pool in status["pools"]]
    return len(living) == 2 and all(len(there) == 2 for there in pools) and len(status["kvcache"]["servers"]) == 2


def twice(status: dict[str, Any]) -> list[str]:
    """NPUs and names of memory servers that exist twice."""
    held = [npu for pool in status["pools"] for replica in pool["replicas"] for npu in replica["npus"]]
    held += [server["name"] for server in status["kvcache"]["servers"]]
    return sorted({one for one in held if held.count(one) > 1})


def deploy(on: Supervised) -> None:
    """Deploy again: Serve spreads replicas when it starts them all, and does not move them later."""
    on.cloudmatrix(SURVIVOR, "down", "--address", HEAD_ADDRESS)
    on.cloudmatrix(SURVIVOR, "serve", "--address", HEAD_ADDRESS, "--config", str(CONFIG))
    on.until(SURVIVOR, whole)


def lose_worker(on: Supervised, kind: str, away_s: float) -> tuple[ChaosRun, list[float], list[str]]:
    """One loss under streams, until all pools are complete again.

    Returns: the clients' results, the pauses of streams [s], and duplicate NPUs and names.
    """
    doubled: list[str] = []

    def settled(status: dict[str, Any]) -> bool:
        doubled.extend(twice(status))
        return whole(status)

    with Streams(on, SURVIVOR, 2.0, TOKENS) as streams:
        time.sleep(QUIET_S)
        fault = time.monotonic()
        if kind == "kill":
            on.kill(VICTIM)
            done = time.monotonic()
            on.until(SURVIVOR, lambda status: any(host["lost_s"] is not None for host in status["hosts"]))
            on.replace(VICTIM)
        else:
            on.hosts.does(kind, VICTIM)
            done = time.monotonic()
            while time.monotonic() < fault + away_s:
                doubled += twice(on.status(SURVIVOR))
                time.sleep(0.5)
            on.hosts.does("thaw" if kind == "freeze" else "join", VICTIM)
        on.until(SURVIVOR, settled)
        progress(f"{kind}: whole again after {time.monotonic() - fault:.1f} s")
        time.sleep(QUIET_S)
    assert streams.run is not None
    return streams.run, [pause for answer in streams.run.answers for pause in stops(answer, fault, done)], doubled


def stops(answer: StreamedAnswer, begun: float, done: float) -> list[float]:
    """Time without tokens of each choice because of a fault, from its start on [s]; it was complete at `done`."""
    if not answer.ask.streamed or answer.sent_s > begun or answer.ended_s < begun:
        return []
    found = []
    for choice in answer.choices:
        at = [answer.sent_s, *(moment for moment, _ in choice.arrivals)]
        gaps = [b - max(a, begun) for a, b in pairwise(at) if b > begun and a < done + FELT_S]
        found += [gap for gap in gaps if gap > least_gap_s(answer)]
    return found


def lose_head(on: Supervised, away_s: float, requests: int) -> ChaosRun:
    """The head is off for this long, then replaced by an empty one."""
    with Streams(on, SURVIVOR, requests / away_s, TOKENS) as streams:
        time.sleep(QUIET_S)
        fault = time.monotonic()
        on.kill(HEAD)
        for words in without_head(on, SURVIVOR):
            code, said = on.said(SURVIVOR, "cloudmatrix", *words)
            progress(f"{words[0]}: {code}: {said.strip()[-300:]}")
        while time.monotonic() < fault + away_s:
            time.sleep(1.0)
        on.replace(HEAD)
        back = time.monotonic()
        while on.said(SURVIVOR, "cloudmatrix", "scale", "decode", "3", "--wait", *dashboard(on))[0] != 0:
            assert time.monotonic() < back + 300, "scaling does not work again"
        progress(f"scaling works {time.monotonic() - back:.1f} s after the start of the new head")
        time.sleep(QUIET_S)
    assert streams.run is not None
    return streams.run


def lose(on: Supervised, kind: str, away_s: float, repeats: int, requests: int) -> list[Figure]:
    """All losses of one kind."""
    findings: list[ChaosFindings] = []
    pauses: list[float] = []
    doubled: list[str] = []
    left: list[str] = []
    for _ in range(1 if kind == "head" else repeats):
        deploy(on)
        if kind == "head":
            run = lose_head(on, away_s, requests)
        else:
            run, stopped, found_twice = lose_worker(on, kind, away_s)
            pauses += stopped
            doubled += found_twice
        left += on.leaks(SURVIVOR)
        findings.append(find(run))
        progress(f"{kind}: {findings[-1].sent} sent, {findings[-1].failed} failed {findings[-1].reasons}")
        for text in run.differences.values():
            progress(text)
    counts = {
        "failed": sum(one.failed for one in findings),
        "different": sum(one.compared - one.exact for one in findings),
        "left behind": len(left),
        "existing twice": len(doubled),
    }
    figures = [Figure(f"{kind}: requests sent", "", tuple(float(one.sent) for one in findings))]
    figures += [Figure(f"{kind}: {name}", "", (float(count),), goal=0.0) for name, count in counts.items()]
    if kind != "head" and (p99 := Pauses.of(pauses).p99_s) is not None:
        name = f"{kind}: fault to next token, p99 of {len(pauses)} streams"
        figures.append(Figure(name, "s", (p99,), goal=HealthConfig().silence_s + GOAL_S))
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_host_loss", __doc__, 3, ("head", "kill", "freeze", "cut"))
    parser.add_argument("--away", type=float, default=60.0, metavar="S", help="how long the host is away (default 60)")
    parser.add_argument("--requests", type=int, default=500, help="of `head`, while it is away (default 500)")
    args = parser.parse_args()
    if not args.modes:
        raise SystemExit("bench_host_loss takes minutes and needs root: name what to lose (head, kill, freeze, cut)")
    found = conditions(None, kinds=args.modes, away_s=args.away, tokens=TOKENS)
    show_conditions(found)
    with tempfile.TemporaryDirectory(prefix="host-loss-") as folder, supervised(Path(folder), *WORKERS) as on:
        on.together()
        figures = [one for kind in args.modes for one in lose(on, kind, args.away, args.repeats, args.requests)]
    report("bench_host_loss", found, figures)


if __name__ == "__main__":
    main()
