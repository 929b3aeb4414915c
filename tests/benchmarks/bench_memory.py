"""Memory of an idle system, by process, a minute after `deploy/small.toml` is ready. Goal: 1.5 GiB in all (PSS).

KV blocks take memory as they are used, so a system that has served requests has more.
"""

import time
from pathlib import Path

from tests.benchmarks.conditions import ROOT, Figure, checkpoint, conditions, make_parser, report, show_conditions
from tests.benchmarks.processes import pss_by_role
from tests.benchmarks.served import Served, Setup

IDLE_S = 60.0
GOAL_MIB = 1536.0


class _Shipped(Setup):
    """The configuration that is served by default."""

    def toml(self) -> str:
        shipped, models = ROOT / "deploy" / "small.toml", ROOT / "deploy" / "models"
        text = shipped.read_text().replace('path = "models/', f'path = "{models}/')
        return f"{text}[cluster]\ndashboard_port = 0\n"


def memory(model: Path, repeats: int) -> list[Figure]:
    """PSS by role [MiB], each of its own start."""
    found = []
    for _ in range(repeats):
        with Served(_Shipped(model)) as served:
            time.sleep(IDLE_S)
            found.append(pss_by_role(served.process.pid))
    totals = Figure("idle: all", "MiB", tuple(sum(one.values()) for one in found), goal=GOAL_MIB)
    roles = sorted({role for one in found for role in one})
    return [totals] + [Figure(f"idle: {role}", "MiB", tuple(one.get(role, 0.0) for one in found)) for role in roles]


def main() -> None:
    """Run and print."""
    args = make_parser("bench_memory", __doc__, 1).parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32")
        show_conditions(found)
        report("bench_memory", found, memory(model, args.repeats))


if __name__ == "__main__":
    main()
