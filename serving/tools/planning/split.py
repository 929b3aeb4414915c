"""The best use of a number of NPUs: the split with the highest goodput, or the one that holds at the highest rate."""

from collections.abc import Callable

from serving.tools.planning.candidate import Candidate, SearchSpace
from serving.tools.planning.edge import highest_that_holds
from serving.tools.planning.order import order_of
from serving.tools.planning.verdict import Evaluate, PlanProbe, PlanTarget, PlanVerdict

FIRST = 16
"""Splits that are simulated on a short stretch; by the cost model alone, the others serve less."""
FINALISTS = 6
RATE_SPLITS = 4
_FINEST = 1.03
"""Rates closer than this are treated as equal."""
_STEP = 1.1
_GUESS = 1.2

Capacity = Callable[[Candidate], float]
"""Requests per second that a split can serve at most, by the cost model."""


def full_splits(space: SearchSpace) -> list[Candidate]:
    """Candidates to which no instance of their own shapes can be added."""
    return [one for one in space.candidates() if space.budget - one.npus < min(one.prefill.npus, one.decode.npus)]


def ranked_splits(space: SearchSpace, capacity: Capacity) -> list[Candidate]:
    """Full splits with the preferred batch limits, those that can serve most first."""
    return sorted(full_splits(space.plain()), key=lambda one: (-capacity(one), space.rank(one)))


def best_split(
    space: SearchSpace, capacity: Capacity, evaluate: Evaluate, target: PlanTarget
) -> tuple[Candidate | None, dict[Candidate, PlanVerdict]]:
    """The split with the highest goodput on the whole trace; other batch limits are tried with the best one.

    Plans of the same goodput are ordered by their latency, then by their NPUs.

    Returns: it, None if the budget is too small for any; and the whole-trace verdicts of the finalists.
    """
    first = ranked_splits(space, capacity)[:FIRST]
    short = evaluate([PlanProbe(one, whole=False) for one in first])
    key = order_of("goodput", space, target)
    order = sorted(zip(first, short, strict=True), key=lambda pair: key(*pair))
    finalists = [candidate for candidate, _ in order[:FINALISTS]]
    verdicts = dict(zip(finalists, evaluate([PlanProbe(one) for one in finalists]), strict=True))
    if not verdicts:
        return None, {}
    variants = space.variants(min(verdicts, key=lambda one: key(one, verdicts[one])))
    verdicts.update(zip(variants, evaluate([PlanProbe(one) for one in variants]), strict=True))
    return min(verdicts, key=lambda one: key(one, verdicts[one])), verdicts


def highest_rate(
    space: SearchSpace, capacity: Capacity, evaluate: Evaluate, target: PlanTarget
) -> tuple[Candidate | None, float, dict[Candidate, PlanVerdict]]:
    """The split that holds at the highest rate, and that rate.

    Rates double (or halve) on the short stretch until no split holds, then the gap is halved. From there the same on
    the whole trace, in small steps: the stretch, cold and busy, is no more than a good guess.

    Returns: split, factor on the trace's rate, and whole-trace verdicts at that factor; None and 0 if none holds.
    """
    splits = ranked_splits(space, capacity)[:RATE_SPLITS]
    seen: dict[float, dict[Candidate, PlanVerdict]] = {}

    def on_stretch(rate: float) -> bool:
        return any(one.holds(target) for one in evaluate([PlanProbe(split, False, rate) for split in splits]))

    def on_whole(rate: float) -> bool:
        seen[rate] = dict(zip(splits, evaluate([PlanProbe(split, True, rate) for split in splits]), strict=True))
        return any(one.holds(target) for one in seen[rate].values())

    guess = highest_that_holds(on_stretch, 1.0, 2.0, _GUESS)
    rate = highest_that_holds(on_whole, guess, _STEP, _FINEST) if guess else 0.0
    if not rate:
        return None, 0.0, {}
    good = {one: verdict for one, verdict in seen[rate].items() if verdict.holds(target)}
    key = order_of("rate", space, target)
    return min(good, key=lambda one: key(one, good[one])), rate, seen[rate]
