"""The best use of so many NPUs: the split with the highest goodput, or the one that holds at the highest rate."""

from collections.abc import Callable, Sequence

from serving.sim.planning.candidate import Candidate, Space
from serving.sim.planning.verdict import Evaluate, Probe, Target, Verdict

FIRST = 16
"""Splits that are simulated on a short stretch; the others are told by the cost model alone to serve less."""
FINALISTS = 6
RATE_SPLITS = 4
_FINEST = 1.03
"""Rates closer than this are not told apart."""
_HIGHEST = 1024.0

Capacity = Callable[[Candidate], float]
"""Requests per second that a split can serve at most, by the cost model."""


def full_splits(space: Space) -> list[Candidate]:
    """Candidates to which no instance of their own shapes can be added."""
    smallest = {
        (prefill, decode): min(prefill.npus, decode.npus) for prefill in space.prefill for decode in space.decode
    }
    return [one for one in space.candidates() if space.budget - one.npus < smallest[one.prefill, one.decode]]


def ranked_splits(space: Space, capacity: Capacity) -> list[Candidate]:
    """Full splits, those that can serve most first."""
    return sorted(full_splits(space), key=lambda one: (-capacity(one), space.rank(one)))


def best_split(
    space: Space, capacity: Capacity, evaluate: Evaluate
) -> tuple[Candidate | None, dict[Candidate, Verdict]]:
    """The split with the highest goodput on the whole trace.

    Returns: it, None if the budget is too small for any; and the whole-trace verdicts of the finalists.
    """
    first = ranked_splits(space, capacity)[:FIRST]
    short = evaluate([Probe(one, whole=False) for one in first])
    order = sorted(zip(first, short, strict=True), key=lambda pair: goodness(space, *pair))
    finalists = [candidate for candidate, _ in order[:FINALISTS]]
    verdicts = dict(zip(finalists, evaluate([Probe(one) for one in finalists]), strict=True))
    best = min(verdicts, key=lambda one: goodness(space, one, verdicts[one]), default=None)
    return best, verdicts


def goodness(space: Space, candidate: Candidate, verdict: Verdict) -> tuple[float, tuple[int, ...]]:
    """Sorts by goodput, the highest first, then by cost."""
    return -verdict.goodput_per_s, space.rank(candidate)


def highest_rate(
    space: Space, capacity: Capacity, evaluate: Evaluate, target: Target
) -> tuple[Candidate | None, float, dict[Candidate, Verdict]]:
    """The split that holds at the highest rate, and that rate.

    Rates double (or halve) on the short stretch until no split holds, then the gap is halved; the whole trace confirms,
    at a lower rate if it must.

    Returns: split, factor on the trace's rate, and whole-trace verdicts at that factor; None and 0 if none holds.
    """
    splits = ranked_splits(space, capacity)[:RATE_SPLITS]

    def holding(rate: float, whole: bool, among: Sequence[Candidate]) -> dict[Candidate, Verdict]:
        verdicts = evaluate([Probe(one, whole, rate) for one in among])
        return dict(zip(among, verdicts, strict=True))

    low, high = _bracket(lambda rate: _any(holding(rate, False, splits), target))
    while high / max(low, 1e-9) > _FINEST and low:
        middle = (low * high) ** 0.5
        if _any(holding(middle, False, splits), target):
            low = middle
        else:
            high = middle
    rate, step = low, _FINEST
    while rate >= 1 / _HIGHEST:
        verdicts = holding(rate, True, splits)
        if _any(verdicts, target):
            good = {one: verdict for one, verdict in verdicts.items() if verdict.holds(target)}
            return min(good, key=lambda one: (-good[one].attainment, space.rank(one))), rate, verdicts
        rate, step = rate / step, step * step
    return None, 0.0, {}


def _any(verdicts: dict[Candidate, Verdict], target: Target) -> bool:
    return any(verdict.holds(target) for verdict in verdicts.values())


def _bracket(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Two rates, one of which holds and the double of which does not; (0, ..) if even the lowest does not."""
    rate = 1.0
    if holds(rate):
        while rate < _HIGHEST and holds(2 * rate):
            rate *= 2
        return rate, 2 * rate
    while rate > 1 / _HIGHEST:
        rate /= 2
        if holds(rate):
            return rate, 2 * rate
    return 0.0, rate
