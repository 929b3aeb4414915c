"""Throughput with time lines on ÷ off: two systems side by side, asked in turns, so that load on the machine hits both.

Each turn: 32 streams of 128 tokens at once, greedy, all through HTTP. Scrapes of `/metrics` go on meanwhile at both.
Goal: a ratio of at least 0.98.
"""

import statistics
import threading
import urllib.request
from dataclasses import replace

from serving.model.config import read_architecture
from tests.benchmarks.bench_throughput import prompts, served_s
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.served import Served, Setup

GOAL = 0.98
SCRAPE_S = 5.0


class Scraper:
    """A Prometheus that reads `/metrics` every few seconds."""

    def __init__(self, *systems: Served) -> None:
        self._urls = [f"http://127.0.0.1:{system.port}/metrics" for system in systems]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SCRAPE_S):
            for url in self._urls:
                with urllib.request.urlopen(url, timeout=30) as page:
                    page.read()


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_timelines", __doc__, repeats=12)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens generated per stream")
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, streams=args.streams, prompt_tokens=args.prompt, output_tokens=args.output)
        show_conditions(found)
        setup = Setup(model, threads=1)
        ratios: list[float] = []
        vocab_size = read_architecture(model).vocab_size
        with Served(setup) as timed, Served(replace(setup, timelines=0)) as plain, Scraper(timed, plain):
            for repeat in range(-1, args.repeats):  # the first one warms up
                batch = prompts(args.streams, args.prompt, vocab_size, seed=repeat)
                order = (timed, plain) if repeat % 2 else (plain, timed)
                took = {system.port: served_s(system, batch, args.output) for system in order}
                ratios.append(took[plain.port] / took[timed.port])
                progress(f"turn {repeat}: {ratios[-1]:.3f}, median {statistics.median(ratios[-args.repeats :]):.3f}")
        figure = Figure("time lines on / off", "", tuple(ratios[1:]), goal=GOAL, at_most=False)
        report("bench_timelines", found, [figure])


if __name__ == "__main__":
    main()
