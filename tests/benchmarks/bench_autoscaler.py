"""The autoscaler in virtual time: SLO attainment and cost, compared with a baseline and the best static split.

Each load is played under `[autoscaler] policy = "slo"`, under a rule that is the least that it must beat ("rule": the
offered prompt tokens at 75 % of the measured rate, and the queue), under "requests" (replicas follow the requests in
flight), and on the best static split: the fewest NPUs that, kept from the first to the last request, reach `[slo]
attainment`, or that of the SLO policy if none does. It is found by simulation. NPU-hours count every instance that
serves, starts or drains, while requests arrive. Traces are played on the pools of
deploy/cloudmatrix384-autoscaled.toml; larger decode instances serve more per NPU, but leave fewer sizes to choose from.
Waves of ten minutes (sinus, bursts, ramp) use smaller prefill instances and a slower engine.

  python -m tests.benchmarks.bench_autoscaler --traces DIR [--evening | --quick]
  python -m tests.benchmarks.bench_autoscaler --load sinus --load bursts --load ramp
  python -m tests.benchmarks.bench_autoscaler --trace FILE

DIR holds servegen_deepseek_r1/ (github.com/alibaba/ServeGen, data/reason/deepseek-r1), azure_llm_2023/ (github.com/
Azure/AzurePublicDataset) and mooncake/conversation_trace.jsonl (github.com/kvcache-ai/Mooncake). Without it only the
synthetic loads are played. FILE is any trace that `simulate` reads; it alone is played, unchanged.
`cloudmatrix compile` makes it faster.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.tools.compilation.build import prefer_compiled
from tests.benchmarks.conditions import conditions, show_conditions


def main() -> int:
    """Play and print."""
    arguments = command_line()
    compiled = not arguments.interpreted and prefer_compiled()
    from tests.benchmarks.autoscaling.play import chosen_loads, play_all  # simulates: not before that choice

    loads = chosen_loads(arguments)
    found = conditions(None, loads={load.name: load.said for load in loads}, compiled=compiled)
    show_conditions(found)
    trials = play_all(loads, baseline=not arguments.slo_only)
    print(json.dumps({"benchmark": "autoscaler", "conditions": found, "trials": trials}, default=str))
    return 0


def command_line(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Options in some words; in those that this program was started with if none are given."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_autoscaler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces")
    which.add_argument("--trace", type=Path, metavar="FILE", help="any trace that `simulate` reads")
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens that one of FILE's hash_ids stands for")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="half of an evening instead of the day; a minute")
    part.add_argument("--evening", action="store_true", help="the R1 day from 19:30 on")
    parser.add_argument("--load", action="append", metavar="NAME", help="only loads whose name begins like this")
    parser.add_argument("--day-speed", type=float, default=8.0, help="the R1 day so many times as fast (default 8)")
    parser.add_argument("--day-sample", type=int, default=8, help="keep one of so many of its requests (default 8)")
    parser.add_argument("--day-volume", type=float, default=1.0, help="so many times its requests in the same time")
    parser.add_argument("--decode-npus", type=int, default=32, metavar="N", help="of a decode instance (default 32)")
    parser.add_argument("--slo-only", action="store_true", help="neither baseline nor static splits")
    parser.add_argument("--interpreted", action="store_true", help="run the sources, even if they have been compiled")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
