"""Margins of a plan: the factor on the load at which each SLO breaks, and its performance after a loss."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.tools.planning.candidate import Candidate
from serving.tools.planning.verdict import (
    LOSSES,
    LOSSES_TOGETHER,
    Evaluate,
    PlanProbe,
    PlanTarget,
    loss_text,
)

MOST = 8.0
"""Largest factor on the load that is tried; and its inverse the smallest."""
_STEP = 2.0
_FINE = 1.05
"""Factors closer than this are treated as equal."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Factors on the load up to which the target share of requests keeps each SLO.

    Attributes:
        ttft, tpot: 0 = not even with an eighth of the load; `MOST` = with every load that was tried.
    """

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """A plan from the moment of a loss on.

    Attributes:
        what: for people.
        attainment: of requests that arrived in the ten minutes from the loss on; `whole_attainment` of all.
        hit: sequences that lost their instance or its memory.
    """

    what: str
    attainment: float
    whole_attainment: float
    ttft_p99_s: float
    tpot_p99_s: float
    hit: int
    holds: bool


def headroom(
    candidate: Candidate, rate: float, target: PlanTarget, evaluate: Evaluate, screen: Evaluate | None = None
) -> Headroom:
    """Simulate a plan at other loads.

    Args:
        rate: of the plan itself; factors count from it.
        screen: finds the factor near which simulations look for the edge.
    Effects: at most eight simulations for each SLO, most of which serve both; after a good screening two or three.
    """

    def edge(share: str) -> float:
        def found(by: Evaluate, first: float, step: float) -> float:
            def holds(factor: float) -> bool:
                (verdict,) = by([PlanProbe(candidate, rate=rate * factor)])
                return float(getattr(verdict, share)) >= target.attainment

            return highest_that_holds(holds, first, step, _FINE, MOST)

        estimate = 0.0 if screen is None else found(screen, 1.0, _STEP)
        return found(evaluate, estimate, _FINE) if estimate else found(evaluate, 1.0, _STEP)

    return Headroom(edge("ttft_attainment"), edge("pace_attainment"))


def losses(candidate: Candidate, rate: float, target: PlanTarget, evaluate: Evaluate) -> list[LossOutcome]:
    """Simulate a plan with each loss in the middle of its busiest minute. Returns: first the plan without any."""
    each = LOSSES_TOGETHER if candidate.one_pool else LOSSES
    probes = [PlanProbe(candidate, rate=rate), *(PlanProbe(candidate, rate=rate, loss=loss) for loss in each)]
    return [
        LossOutcome(
            "nothing" if probe.loss is None else loss_text(probe.loss, candidate),
            verdict.worst_attainment, verdict.attainment, verdict.ttft_p99_s, verdict.tpot_p99_s, verdict.hit,
            verdict.worst_attainment >= target.attainment,
        )
        for probe, verdict in zip(probes, evaluate(probes), strict=True)
    ]  # fmt: skip


# The highest rate at which a predicate holds: doubled or halved until it changes, then the interval is bisected.

HIGHEST = 1024.0


def highest_that_holds(
    holds: Callable[[float], bool], rate: float, step: float, fine: float, highest: float = HIGHEST
) -> float:
    """The highest rate that holds, near an initial estimate.

    Args:
        step: factor between rates until one holds and the next does not. fine: final ratio between them.
        highest: no higher rate is tried, and none below its inverse.
    Returns: 0 if none holds; a rate within a step of `highest` if no failure was seen.
    """
    low, high = (rate, rate * step) if holds(rate) else (0.0, rate)
    while low and high <= highest and holds(high):
        low, high = high, high * step
    if low and high > highest:
        return low
    while not low and high > 1 / highest:
        low, high = (high / step, high) if holds(high / step) else (0.0, high / step)
    while low and high / low > fine:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
