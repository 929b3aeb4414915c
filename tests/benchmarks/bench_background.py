"""Background responses of gateways that are killed: how many continue without a lost or doubled event.

Every gateway is a process with a fake backend, which says the tokens of a seed and cuts them differently in each
process; all share a real Redis. Each kill (SIGKILL) hits five responses that clients stream. They go on at another
gateway with `starting_after`. The run fails at the first event that is lost or doubled, and at the first text that is
not that of its seed. Goal: 100 of 100.
"""

import tempfile
from pathlib import Path

from tests.benchmarks.conditions import Figure, conditions, make_parser, report, show_conditions
from tests.gateway.api.killed_gateways import LENGTH, LIMITS, rounds
from tests.gateway.api.support import write_model_folder
from tests.kvpool.redis_process import RedisProcess

AT_ONCE = 5


def main() -> None:
    """Run and print."""
    args = make_parser("bench_background", __doc__, repeats=20).parse_args()
    found = conditions(None, kills=args.repeats, responses=AT_ONCE, tokens=LENGTH, lease_s=LIMITS.lease_s)
    show_conditions(found)
    with tempfile.TemporaryDirectory() as folder:
        model, redis = write_model_folder(Path(folder)), RedisProcess(Path(folder))
        redis.start()
        try:
            outcomes = rounds(model, redis.url, args.repeats, seed=1, at_once=AT_ONCE)
        finally:
            redis.end()
    cut = [one for one in outcomes if one.before < len(one.events)]
    figures = [
        Figure(
            "responses without a lost or doubled event", "", (len(outcomes),), AT_ONCE * args.repeats, at_most=False
        ),
        Figure("of them with events after the kill", "", (len(cut),)),
        Figure("events before the kill", "", tuple(one.before for one in outcomes)),
        Figure("events in all", "", tuple(len(one.events) for one in outcomes)),
    ]
    report("bench_background", found, figures)


if __name__ == "__main__":
    main()
