"""What is in a workload, in figures: to be read before it is simulated."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from serving.sim.workload.columns import IntArray
from serving.sim.workload.errors import TraceError
from serving.sim.workload.request import TraceRequest, Workload

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths of prompts or answers [tokens]."""

    mean: float
    p50: float
    p90: float
    p99: float
    largest: int


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Figures of a workload.

    Attributes:
        duration_s: from 0 to the last arrival. rate_per_s: over that time; 0 if it is none.
        ideal_reuse: share of prompt tokens in leading blocks that an earlier prompt had: what a cache without limits,
            filled at once, would save.
    """

    name: str
    count: int
    duration_s: float
    rate_per_s: float
    prompt: LengthSummary
    output: LengthSummary
    ideal_reuse: float

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.name}: {self.count} requests in {self.duration_s:.1f} s ({self.rate_per_s:.2f} per second)"
        for what, lengths in (("prompts", self.prompt), ("answers", self.output)):
            yield (
                f"{what}: {lengths.mean:.0f} tokens on average, p50 {lengths.p50:.0f}, p90 {lengths.p90:.0f}, "
                f"p99 {lengths.p99:.0f}, largest {lengths.largest}"
            )
        yield f"{self.ideal_reuse:.1%} of prompt tokens repeat an earlier prompt's prefix"


def describe(workload: Workload) -> WorkloadSummary:
    """Read a workload and sum it up. Memory grows with the prefix blocks that differ, by about 100 bytes each.

    Raises: TraceError if there is no request in it, and what reading raises.
    Effects: reads the workload, so uses it up if it is one that can be read only once.
    """
    prompts: list[int] = []
    outputs: list[int] = []
    last_s = 0.0

    def counted() -> Iterator[TraceRequest]:
        nonlocal last_s
        for request in workload.requests:
            prompts.append(request.prompt_tokens)
            outputs.append(request.output_tokens)
            last_s = request.arrival_s
            yield request

    repeated = _repeated_tokens(counted(), workload.block_tokens)
    if not prompts:
        raise TraceError(f"{workload.name}: no request in it; there is nothing to describe")
    return WorkloadSummary(
        name=workload.name,
        count=len(prompts),
        duration_s=last_s,
        rate_per_s=len(prompts) / last_s if last_s else 0.0,
        prompt=_summary(np.array(prompts, np.int64)),
        output=_summary(np.array(outputs, np.int64)),
        ideal_reuse=repeated / sum(prompts),
    )


def _repeated_tokens(requests: Iterable[TraceRequest], block_tokens: int) -> int:
    """Tokens of leading blocks that were there before."""
    seen: set[tuple[int, int]] = set()
    repeated = 0
    for request in requests:
        known = 0
        keys = list(enumerate(request.blocks))
        for key in keys:
            if key not in seen:
                break
            known += 1
        seen.update(keys[known:])
        repeated += min(known * block_tokens, request.prompt_tokens)
    return repeated


def _summary(lengths: IntArray) -> LengthSummary:
    """Of [requests] int64."""
    p50, p90, p99 = np.percentile(lengths, _PERCENTILES).tolist()
    return LengthSummary(float(lengths.mean()), p50, p90, p99, int(lengths.max()))
