"""Demand of a workload, read once: lengths, and what a cache without limits would save of each prompt."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from serving.virtual.workload.errors import TraceError
from serving.virtual.workload.request import RequestStream

READ_AT_MOST = 200_000
"""Requests that bounds are computed from."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanDemand:
    """Requests in order of arrival; each array is [requests] int64.

    Attributes:
        duration_s: from 0 to the last arrival that was read.
        reused: prompt tokens in leading blocks that an earlier prompt had; at least one token is always computed.
        complete: whether all requests were read.
    """

    duration_s: float
    prompt: Ints
    output: Ints
    reused: Ints
    complete: bool

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def uncached(self) -> Ints:
        """Prompt tokens that have to be computed even with an ideal cache."""
        return self.prompt - self.reused

    @property
    def attended(self) -> float:
        """Mean number of tokens that each of those attends to."""
        return attended_by_each(self.uncached, self.reused)


def attended_by_each(new: Ints, reused: Ints) -> float:
    """Tokens that a computed prompt token attends to, in the mean over prompts.

    Args:
        new, reused: tokens of each prompt that are computed, and that a cache has. [requests] int64
    """
    total = float(new.sum())
    return float((new * (reused + new / 2)).sum()) / total if total else 0.0


def demand(workload: RequestStream, *, reuse: bool, most: int = READ_AT_MOST) -> PlanDemand:
    """Read a workload.

    Args:
        reuse: whether blocks are reused at all.
    Raises: TraceError if there is no request in it.
    Effects: one pass through the workload.
    """
    seen: set[tuple[int, int]] = set()
    prompts: list[int] = []
    outputs: list[int] = []
    reused: list[int] = []
    last_s = 0.0
    stream = iter(workload.requests)
    for request in islice(stream, most):
        last_s = request.arrival_s
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        known = 0
        if reuse:
            for key in enumerate(request.blocks):
                if key not in seen:
                    break
                known += 1
            seen.update(list(enumerate(request.blocks))[known:])
        reused.append(min(known * workload.block_tokens, request.prompt_tokens - 1))
    if not prompts:
        raise TraceError(f"{workload.name}: it has no requests to plan for")
    complete = next(stream, None) is None
    prompt, output, again = (np.array(column, np.int64) for column in (prompts, outputs, reused))
    return PlanDemand(last_s, prompt, output, again, complete)
