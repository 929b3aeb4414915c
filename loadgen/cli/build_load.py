"""From flags to when requests are sent: open or closed loop, the arrival process, how many, how long."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from loadgen.arrivals import Arrivals, Ramp, RampShape, ReplayedArrivals, Steady, Steps
from loadgen.errors import UsageError

DEFAULT_CONCURRENCY = 8
DEFAULT_CONVERSATIONS = 100


@dataclass(frozen=True)
class LoadSchedule:
    """Schedule of requests.

    Attributes:
        arrivals: None = closed loop. concurrency: slots of a closed loop, or the cap of an open one.
        conversations, duration_s: end of the run, whichever comes first; None = the other, or the data set.
        rate_per_s: nominal rate if it is one number. label: for people.
    """

    arrivals: Arrivals | ReplayedArrivals | None
    concurrency: int | None
    conversations: int | None
    duration_s: float | None
    rate_per_s: float | None
    label: str


def build_load(
    flags: argparse.Namespace, *, timed: bool, endless: bool, rate: float | None = None, slots: int | None = None
) -> LoadSchedule:
    """The load that the flags describe.

    Args:
        timed: whether the workload has its own times. endless: whether it never ends.
        rate, slots: a sweep's value instead of `--request-rate` or `--concurrency`.
    Raises: UsageError for flags that contradict each other.
    """
    rate = flags.request_rate if rate is None and slots is None else rate
    concurrency = slots or flags.concurrency
    conversations, duration_s = flags.num_prompts, flags.duration
    if isinstance(steps := flags.rate_steps, list) and duration_s is None:
        duration_s = sum(length for _, length in steps)
    if conversations is None and duration_s is None and endless:
        conversations = DEFAULT_CONVERSATIONS
    arrivals, label = _arrivals(flags, rate, conversations, duration_s, timed=timed and slots is None)
    if arrivals is None:
        concurrency = concurrency or DEFAULT_CONCURRENCY
        label = f"concurrency {concurrency}"
    if not isinstance(arrivals, ReplayedArrivals):
        _refuse_replay_flags(flags)
    if (arrivals is None or isinstance(arrivals, ReplayedArrivals)) and flags.burstiness != 1:
        raise UsageError("--burstiness shapes the gaps of --request-rate, --rate-steps or a ramp; give one of them")
    finite_rate = rate if isinstance(arrivals, Steady) and rate is not None and math.isfinite(rate) else None
    return LoadSchedule(arrivals, concurrency, conversations, duration_s, finite_rate, label)


def _arrivals(
    flags: argparse.Namespace, rate: float | None, conversations: int | None, duration_s: float | None, *, timed: bool
) -> tuple[Arrivals | ReplayedArrivals | None, str]:
    """The arrival process and its name.

    Raises: UsageError.
    """
    shape = _burstiness(flags)
    ramp = flags.ramp_up_strategy is not None
    ways = [name for name, on in (("--request-rate", rate), ("--rate-steps", flags.rate_steps), ("a ramp", ramp)) if on]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} contradict each other; choose one")
    if flags.rate_steps:
        return Steps(tuple(flags.rate_steps), shape), "rate steps"
    if not ramp and (flags.ramp_up_start_rps or flags.ramp_up_end_rps):
        raise UsageError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy, e.g. linear")
    if ramp:
        return _ramp(flags, shape, conversations, duration_s), "ramp"
    if rate is not None:
        if flags.arrival == "trace":
            raise UsageError("--arrival trace takes the data set's own times; use --rate-scale, not --request-rate")
        return Steady(rate, shape), f"rate {rate:g}/s"
    if flags.arrival == "trace" or (timed and flags.arrival is None and flags.concurrency is None):
        if not timed:
            raise UsageError("--arrival trace needs a data set with times: --dataset-name trace")
        window = (flags.trace_from or 0.0, math.inf if flags.trace_to is None else flags.trace_to)
        return ReplayedArrivals(flags.rate_scale, *window), f"recorded times x {flags.rate_scale:g}"
    if flags.arrival is not None:
        raise UsageError(f"--arrival {flags.arrival} needs --request-rate")
    return None, ""


def _refuse_replay_flags(flags: argparse.Namespace) -> None:
    """Refuse flags that only apply to a replay: in a load of another kind they would have no effect, without a word.

    Raises: UsageError.
    """
    made_up = flags.dataset_path is not None and Path(flags.dataset_path).is_dir()  # ServeGen: the stretch is made
    window = not made_up and (flags.trace_from is not None or flags.trace_to is not None)
    if window or flags.rate_scale != 1:
        raise UsageError(
            "--trace-from, --trace-to and --rate-scale belong to a replay of a data set's own times; leave them out, "
            "or leave out what sets other times"
        )


def _burstiness(flags: argparse.Namespace) -> float:
    """Shape of the gaps.

    Raises: UsageError if --arrival and --burstiness contradict each other.
    """
    given: float = flags.burstiness
    if flags.arrival == "constant":
        return math.inf
    if flags.arrival == "poisson" and given != 1:
        raise UsageError("--arrival poisson means --burstiness 1; use --arrival gamma for another one")
    return given


def _ramp(flags: argparse.Namespace, shape: float, conversations: int | None, duration_s: float | None) -> Ramp:
    """A ramp over the whole run.

    Raises: UsageError if its ends are missing.
    """
    low, high = flags.ramp_up_start_rps, flags.ramp_up_end_rps
    if low is None or high is None:
        raise UsageError("a ramp needs --ramp-up-start-rps and --ramp-up-end-rps")
    strategy = RampShape(flags.ramp_up_strategy)
    if duration_s is not None:
        return Ramp(low, high, duration_s, strategy, shape)
    return Ramp.over_count(low, high, (conversations or DEFAULT_CONVERSATIONS) + flags.num_warmups, strategy, shape)
