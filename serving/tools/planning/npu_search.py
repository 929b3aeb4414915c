"""The search of a plan: the fewest NPUs that hold, and the best use of so many NPUs."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

from serving.tools.planning.candidate import Candidate, SearchSpace, Shape
from serving.tools.planning.knowledge import Knowledge, raise_floor
from serving.tools.planning.margins import highest_that_holds
from serving.tools.planning.plan import order_of
from serving.tools.planning.verdict import Evaluate, PlanProbe, PlanTarget, PlanVerdict

# The fewest NPUs that hold: floors on a short stretch first, then candidates on the whole trace, cheapest first.
#
# analytic floors -> cheapest open candidates: their shapes' floors by bisection, each with a generous other pool, on
#                  the busiest stretch; then the whole trace, each verdict raising floors, until one holds: first those
#                  that held on the stretch, and of a shape that missed some times, in steps that double
#               -> cheaper open candidates: the best plan with one pool halfway to its floor, then the dearest
#                  first, since a miss rules out those with fewer
#               -> neighbours with one instance less, because noise can make a floor too high
#
# A shape that no cheap candidate has is not simulated at all, and a run ends once its target is out of reach.
# Where one pool does both there is no other one: it starts at its analytic floor, on the whole trace.

DOUBT = 3.0
"""A short stretch excludes a candidate if it misses this many times more requests than the target allows: its cache is
cold and it is the busiest one, so slightly more misses prove nothing about the whole trace.
"""
WAVE = 2
"""Candidates that are simulated at a time. Fixed, so that what is tried does not depend on the number of processes."""
_OTHERS = 4
FINALISTS_OF_LEAST = 2
"""Plans of the same NPUs that are simulated after screening, the best one included; and cheaper ones, at most."""
PoolShape = tuple[str, Shape]
"""A pool, `prefill` or `decode`, and a shape of its instances."""


def find_least(known: Knowledge, evaluate: Evaluate, *, doubt: float = DOUBT) -> Candidate | None:
    """Search.

    Args:
        known: with analytic floors.
        doubt: 1 = a short stretch is believed.
    Returns: the cheapest candidate that holds on the whole trace, or one that costs the same; None if none does.
    Effects: `known` has every verdict and reason.
    """
    bisected: set[PoolShape] = set()
    while wave := _wave(_in_order(known)):
        pools = [one for one in wave if not one.one_pool]
        new = {shape for one in pools for shape in (("prefill", one.prefill), ("decode", one.decode))} - bisected
        if new:
            bisected |= new
            _stretch_floors(known, sorted(new), evaluate, doubt)
        else:
            _try(known, wave, evaluate)
    return settled(known, evaluate)


def _in_order(known: Knowledge) -> list[Candidate]:
    """Candidates that may be cheaper than the best, the next ones to simulate first."""
    ranked = known.untried()
    best = known.best
    if best is not None:
        halved = _halfway(best, known)
        return sorted(ranked, key=lambda one: (one not in halved, -one.npus))  # stable: by rank among equals
    return sorted(ranked, key=lambda one: known.missed_on_stretch(one) or known.too_near(one))


def _halfway(best: Candidate, known: Knowledge) -> tuple[Candidate, ...]:
    """The best candidate, with the number of one pool's instances halfway between its floor and its own."""
    if best.one_pool:
        return (replace(best, decodes=(known.both[best.both].least + best.decodes) // 2),)
    prefills = (known.prefill[best.prefill].least + best.prefills) // 2
    decodes = (known.decode[best.decode].least + best.decodes) // 2
    return replace(best, prefills=prefills), replace(best, decodes=decodes)


def confirm(known: Knowledge, screened: Knowledge, evaluate: Evaluate) -> Candidate | None:
    """Simulate what screening found: the cheapest plans that hold, until one does, then those around the boundary.

    The boundary: plans with one instance less than the best, and the cheaper ones that screening let miss narrowly.

    Args:
        known: without verdicts.
        screened: what screening found; plans of one pool in it were simulated.
    Returns: the cheapest that holds in simulations; None if none of those that screening named does.
    Effects: `known` has the verdicts.
    """
    key = order_of("least", known.space, known.target)
    ranked = sorted(screened.tried, key=lambda one: key(one, screened.tried[one]))
    for one, verdict in screened.tried.items():
        if not verdict.screened:
            known.learn(one, verdict)
    for one in [one for one in ranked if screened.tried[one].holds(known.target)]:
        if one not in known.tried and known.open(one):
            _try(known, [one], evaluate)
        if one in known.tried and known.tried[one].holds(known.target):
            break
    best = known.best
    if best is None:
        return None
    equals = [one for one in ranked if one.npus == best.npus and one not in known.tried]
    narrow = 1 - DOUBT * (1 - known.target.attainment)
    near = [one for one in ranked if one.npus < best.npus and screened.tried[one].attainment >= narrow]
    others = (*equals[: FINALISTS_OF_LEAST - 1], *near[:FINALISTS_OF_LEAST])
    _try(known, [one for one in others if known.open(one)], evaluate)
    return settled(known, evaluate)


def settled(known: Knowledge, evaluate: Evaluate) -> Candidate | None:
    """The best candidate, after those with one instance less were simulated. Effects: `known` has their verdicts."""
    while best := known.best:
        fewer = [one for one in neighbours(best, known.space, -1) if one not in known.tried]
        if not fewer:
            return best
        _try(known, fewer, evaluate)
    return None


def _wave(ranked: list[Candidate]) -> list[Candidate]:
    """The first ones, no two of which differ in decode's batch limit alone: one verdict may decide both."""
    chosen: dict[Candidate, Candidate] = {}
    for one in ranked:
        chosen.setdefault(replace(one, decode=replace(one.decode, limit=0)), one)
        if len(chosen) == WAVE:
            break
    return list(chosen.values())


def runner_ups(known: Knowledge, best: Candidate, evaluate: Evaluate, *, most: int = _OTHERS) -> None:
    """Simulate plans that may be better than the best one for the same NPUs, and the effect of one more instance.

    The additional instance is assigned to the pool that is nearer to its limit. Other plans with more NPUs are not
    simulated.

    Effects: `known` has their verdicts.
    """
    space, target, verdict = known.space, known.target, known.tried[best]
    late = verdict.ttft_p99_s / target.ttft_s > verdict.tpot_p99_s / target.tpot_s
    more = neighbours(best, space, +1)
    if not best.one_pool:
        more = [one for one in more if (one.prefills > best.prefills) == late]
    equals = [one for one in space.variants(best) if not known.alike(best, one)]
    pairs = {(best.one_pool, best.prefill.npus, best.decode.npus)}
    for candidate in sorted(space.candidates(), key=space.rank):
        pair = candidate.one_pool, candidate.prefill.npus, candidate.decode.npus
        if candidate.npus != best.npus or pair in pairs or len(pairs) > most or not known.open(candidate):
            continue
        pairs.add(pair)
        equals.append(candidate)
    _try(known, [one for one in dict.fromkeys(more + equals) if one not in known.tried], evaluate)


def most_generous(space: SearchSpace) -> list[Candidate]:
    """For each pair of sizes the split of the whole budget that is nearest to half and half; preferred limits.

    And of one pool that does both, for each size the largest number of instances that fits.
    """
    found: dict[tuple[bool, int, tuple[int, int, int, int]], Candidate] = {}
    for one in space.candidates():
        pair = one.one_pool, one.prefill.npus, one.decode.size
        before = found.get(pair)
        if before is None or _imbalance(one, space) < _imbalance(before, space):
            found[pair] = one
    return sorted(found.values(), key=lambda one: (_imbalance(one, space), space.rank(one)))


def neighbours(candidate: Candidate, space: SearchSpace, change: int) -> list[Candidate]:
    """Candidates with this many more instances in one of the pools."""
    if candidate.one_pool:
        one = replace(candidate, decodes=candidate.decodes + change)
        return [one] if one.decodes > 0 and one.npus <= space.budget else []
    both = (
        replace(candidate, prefills=candidate.prefills + change),
        replace(candidate, decodes=candidate.decodes + change),
    )
    return [one for one in both if one.prefills > 0 and one.decodes > 0 and one.npus <= space.budget]


def _imbalance(one: Candidate, space: SearchSpace) -> tuple[int, int]:
    if one.one_pool:
        return space.budget - one.npus // 2, space.budget - one.npus
    prefill, decode = one.prefills * one.prefill.npus, one.decodes * one.decode.npus
    return space.budget - min(prefill, decode), space.budget - one.npus


def _try(known: Knowledge, candidates: list[Candidate], evaluate: Evaluate) -> None:
    if candidates:
        verdicts = evaluate([PlanProbe(one, may_stop=True) for one in candidates])
        for candidate, verdict in zip(candidates, verdicts, strict=True):
            known.learn(candidate, verdict)


Search = Generator[int, PlanVerdict, tuple[int, str]]


def _stretch_floors(known: Knowledge, shapes: Iterable[PoolShape], evaluate: Evaluate, doubt: float) -> None:
    """Bisect each shape's number next to a generous other pool, all of them concurrently."""
    space, needed = known.space, 1 - doubt * (1 - known.target.attainment)
    searches: dict[PoolShape, Search] = {}
    for pool, shape in shapes:
        if pool == "prefill":
            least, most, metric = known.prefill[shape].least, space.most_prefills(shape), "ttft"
        else:
            least, most, metric = known.decode[shape].least, space.most_decodes(shape), "tpot"
        searches[pool, shape] = _fewest(least, most, needed, metric)
    asked = {key: number for key, search in searches.items() if (number := next(search, None)) is not None}
    while asked:
        probes = [PlanProbe(_beside_generous(space, *key, number), whole=False) for key, number in asked.items()]
        verdicts = dict(zip(asked, evaluate(probes), strict=True))
        asked_now, asked = asked, {}
        for (pool, shape), verdict in verdicts.items():
            known.learn_stretch(pool, shape, asked_now[pool, shape], verdict)
            try:
                asked[pool, shape] = searches[pool, shape].send(verdict)
            except StopIteration as end:
                least, why = end.value
                raise_floor(known.prefill if pool == "prefill" else known.decode, shape, least, why)


def _fewest(low: int, high: int, needed: float, metric: str) -> Search:
    """Search the smallest number: steps double until one holds, then the gap is halved.

    Returns: the fewest that holds, one above `high` if none does; and why one less does not.
    """
    bad, good, step, why = low - 1, 0, 1, ""
    while good - bad != 1:
        if not good and bad >= high:
            return high + 1, why
        number = (bad + good) // 2 if good else min(bad + step, high)
        verdict = yield number
        share = verdict.ttft_attainment if metric == "ttft" else verdict.tpot_attainment
        if share >= needed:
            good = number
        else:
            bad, step, why = number, 2 * step, f"on the busiest stretch: {verdict.why}"
    return good, why


def _beside_generous(space: SearchSpace, pool: str, shape: Shape, number: int) -> Candidate:
    """A candidate of this many instances of a shape, with the most instances of the other pool's best-filling shape."""
    others: Iterable[Shape] = space.decode if pool == "prefill" else space.prefill
    left = space.budget - number * shape.npus
    other = max((one for one in others if one.npus <= left), key=lambda one: (left // one.npus * one.npus, one.npus))
    count = left // other.npus
    if pool == "prefill":
        return Candidate(shape, number, other, count)
    return Candidate(other, count, shape, number)


# The best use of a number of NPUs: the split with the highest goodput, or the one that holds at the highest rate.

FIRST = 16
"""Splits that are simulated on a short stretch; by the cost model alone, the others serve less."""
FINALISTS = 6
FINALISTS_SCREENED = 3
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
    space: SearchSpace, capacity: Capacity, evaluate: Evaluate, target: PlanTarget, screen: Evaluate | None = None
) -> tuple[Candidate | None, dict[Candidate, PlanVerdict]]:
    """The split with the highest goodput on the whole trace; other batch limits are tried with the best one.

    Plans of the same goodput are ordered by their latency, then by their NPUs.

    Args:
        screen: evaluates the first splits on the whole trace; None = simulations of a short stretch do.
    Returns: it, None if the budget is too small for any; and the whole-trace verdicts of the finalists.
    """
    first = ranked_splits(space, capacity)[:FIRST]
    whole = screen is not None
    short = (screen or evaluate)([PlanProbe(one, whole=whole) for one in first])
    key = order_of("goodput", space, target)
    order = sorted(zip(first, short, strict=True), key=lambda pair: key(*pair))
    finalists = [candidate for candidate, _ in order[: FINALISTS_SCREENED if whole else FINALISTS]]
    verdicts = dict(zip(finalists, evaluate([PlanProbe(one) for one in finalists]), strict=True))
    if not verdicts:
        return None, {}
    variants = space.variants(min(verdicts, key=lambda one: key(one, verdicts[one])))
    verdicts.update(zip(variants, evaluate([PlanProbe(one) for one in variants]), strict=True))
    return min(verdicts, key=lambda one: key(one, verdicts[one])), verdicts


def highest_rate(
    space: SearchSpace, capacity: Capacity, evaluate: Evaluate, target: PlanTarget, screen: Evaluate | None = None
) -> tuple[Candidate | None, float, dict[Candidate, PlanVerdict]]:
    """The split that holds at the highest rate, and that rate.

    Rates double (or halve) on the short stretch until no split holds, then the gap is halved. From there the same on
    the whole trace, in small steps: the stretch, cold and busy, is no more than a good guess.

    Args:
        screen: gives the guess from the whole trace; None = simulations of the stretch do.
    Returns: split, factor on the trace's rate, and whole-trace verdicts at that factor; None and 0 if none holds.
    """
    splits = ranked_splits(space, capacity)[:RATE_SPLITS]
    seen: dict[float, dict[Candidate, PlanVerdict]] = {}

    def on_stretch(rate: float) -> bool:
        probes = [PlanProbe(split, screen is not None, rate) for split in splits]
        return any(one.holds(target) for one in (screen or evaluate)(probes))

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
