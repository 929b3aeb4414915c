"""Bytes between two hosts made of namespaces (`deploy/hosts`), as shares of what one stream of iperf3 reads.

handoff    a decode instance pulls blocks out of a prefill instance's segment into its own, each verified; blocks of the
           bundled model, and of 1 MiB. Goals: 0.6 and 0.7 of iperf3, which reads into one buffer and checks nothing
pool       put and get of the same blocks, lookup and verification included; goal: 0.6
weights    a model's image, from server to server; goal: 0.6
first      the first handoff of a pair, beyond a later one; goal: 50 ms
TLS        the same with Ray's variables set, as a share of a plain Python TLS socket that reads in pieces of 1 MiB;
           goal for handoffs: 0.8

All are measured in turns, after one of each to warm up, with 1 s of iperf3 in each turn. It must run as root, or where
namespaces are allowed, and wants `iperf3`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from hardware.units import MIB
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, progress, report, show_conditions
from tests.deploy.hosts import Hosts, hosts
from tests.sockets.certificates import Authority

STORYTELLER_BLOCK_BYTES = 43_008
"""Of 16 tokens of the bundled model."""
GOALS = {"handoff small": 0.6, "handoff 1 MiB": 0.7, "weights": 0.6}
POOL_GOAL, TLS_GOAL, FIRST_GOAL_MS = 0.6, 0.8, 50.0
START_S = 120.0


def measured(net: Hosts, total: int, repeats: int, tls: dict[str, str]) -> dict[str, Any]:
    """Run the puller and read its measurements."""
    left = net.addresses["left"]
    sizes = [str(STORYTELLER_BLOCK_BYTES), str(MIB)]
    begin = ["env", f"PYTHONPATH={ROOT}", *(f"{name}={value}" for name, value in tls.items()), sys.executable, "-m"]
    source = [*begin, "tests.benchmarks.between_hosts.source", left, str(total), *sizes]
    puller = [
        *begin,
        "tests.benchmarks.between_hosts.puller",
        left,
        str(repeats),
        "tls" if tls else "plain",
        str(total),
    ]
    with (
        subprocess.Popen(net.command("left", "iperf3", "-s"), stdout=subprocess.DEVNULL) as iperf,
        subprocess.Popen(net.command("left", *source), stdin=PIPE, stdout=PIPE, cwd=ROOT) as serving,
    ):
        try:
            assert serving.stdout is not None
            offer = serving.stdout.readline()
            command = net.command("right", *puller)
            done = subprocess.run(command, input=offer, capture_output=True, cwd=ROOT, timeout=590)
            if done.returncode:
                raise RuntimeError(done.stderr.decode()[-3000:])
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        finally:
            serving.terminate()
            iperf.terminate()


def figures_of(found: dict[str, Any], tls: bool) -> list[Figure]:
    """Rates, and shares of iperf3 or of a plain socket."""
    rates, base = found["rates"], "plain socket" if tls else "iperf3"
    mark = "TLS " if tls else ""
    figures = [Figure(f"{mark}{base}", "MB/s", tuple(rates[base]))]
    for name, values in rates.items():
        if name in (base, "iperf3"):
            continue
        goal = GOALS.get(name, POOL_GOAL if name != "plain socket" else None)
        if tls:
            goal = TLS_GOAL if name.startswith("handoff") else None
        shares = tuple(one / other for one, other in zip(values, rates[base], strict=True))
        figures.append(Figure(f"{mark}{name}", "MB/s", tuple(values)))
        figures.append(Figure(f"{mark}{name} / {base}", "", shares, goal=goal, at_most=False))
    beyond = tuple(first - later for first, later in found["firsts"])
    figures.append(Figure(f"{mark}first handoff of a pair, beyond later ones", "ms", beyond, goal=FIRST_GOAL_MS))
    return figures


def measure(args: argparse.Namespace) -> list[Figure]:
    """Without TLS, then with it."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-tls-", dir=args.folder) as folder:
        for tls in (False, True):
            progress("with TLS" if tls else "without TLS")
            with hosts("left", "right") as net:
                files = Authority(Path(folder)).issue("host") if tls else {}
                figures += figures_of(measured(net, args.total_mib * MIB, args.repeats, files), tls)
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_between_hosts", __doc__, repeats=5)
    parser.add_argument("--total-mib", type=int, default=64, help="bytes moved in a turn")
    parser.add_argument("--folder", default="/var/tmp", help="a folder that both hosts see, for certificates")
    args = parser.parse_args()
    if shutil.which("iperf3") is None:
        raise SystemExit("bench_between_hosts needs iperf3: apt-get install iperf3")
    found = conditions(None, total_mib=args.total_mib, load=os.getloadavg()[0])
    show_conditions(found)
    try:
        figures = measure(args)
    except pytest.skip.Exception as error:
        raise SystemExit(f"bench_between_hosts needs hosts made of namespaces: {error.msg}") from error
    report("bench_between_hosts", found, figures)


if __name__ == "__main__":
    main()
