"""Conclusions from verdicts: excluded candidates, and the reasons. The only inference is that more instances are never
worse.

whole-trace verdict of (p, d)            conclusion
only TTFT is missed too often            no plan with p or fewer of these prefill instances
only TPOT is missed too often            no plan with d or fewer of these decode instances
both, or only the two together           no plan with p or fewer and d or fewer of both
any miss of a plan of one pool           no plan of one pool with as many instances or fewer
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeVar

from serving.tools.planning.candidate import Both, Candidate, SearchSpace, Shape
from serving.tools.planning.plan import order_of
from serving.tools.planning.verdict import PlanTarget, PlanVerdict

Kind = TypeVar("Kind", Shape, Both)


@dataclass(frozen=True, slots=True)
class Floor:
    """Fewest instances of one shape, and why not fewer."""

    least: int
    why: str


class Knowledge:
    """Accumulates verdicts.

    Args:
        prefill, decode, both: lower bounds that hold from the start, by shape.
    """

    def __init__(
        self,
        space: SearchSpace,
        target: PlanTarget,
        prefill: dict[Shape, Floor],
        decode: dict[Shape, Floor],
        both: dict[Both, Floor] | None = None,
    ) -> None:
        self.space = space
        self.target = target
        self.prefill = {shape: prefill.get(shape, Floor(1, "")) for shape in space.prefill}
        self.decode = {shape: decode.get(shape, Floor(1, "")) for shape in space.decode}
        self.both = {one: (both or {}).get(one, Floor(1, "")) for one in space.both}
        self.tried: dict[Candidate, PlanVerdict] = {}
        """Whole-trace verdicts."""
        self._failed: list[tuple[Candidate, str]] = []
        self._doubtful: dict[tuple[str, Shape], int] = {}
        """Most instances that missed the target on the busiest stretch, which is no proof."""
        self._misses: Counter[tuple[str, Shape] | Both] = Counter()
        """Verdicts that raised a shape's floor."""

    def learn(self, candidate: Candidate, verdict: PlanVerdict) -> None:
        """Record a whole-trace verdict and its conclusions."""
        self.tried[candidate] = verdict
        target = self.target
        if verdict.holds(target):
            return
        if candidate.one_pool:
            raise_floor(self.both, candidate.both, candidate.decodes + 1, f"{candidate.label}: {verdict.why}")
            self._misses[candidate.both] += 1
            return
        late, slow = verdict.ttft_attainment < target.attainment, verdict.tpot_attainment < target.attainment
        why = f"{candidate.label}: {verdict.why}"
        if late and not slow:
            raise_floor(self.prefill, candidate.prefill, candidate.prefills + 1, why)
            self._misses["prefill", candidate.prefill] += 1
            return
        for one in [candidate, *(twin for twin in self.space.variants(candidate) if self.alike(candidate, twin))]:
            if late == slow:
                self._failed.append((one, why))
            else:
                raise_floor(self.decode, one.decode, one.decodes + 1, why)
                self._misses["decode", one.decode] += 1

    def learn_stretch(self, pool: str, shape: Shape, count: int, verdict: PlanVerdict) -> None:
        """Record whether this many instances met their pool's limit on the busiest stretch."""
        kept = verdict.ttft_attainment if pool == "prefill" else verdict.tpot_attainment
        if kept < self.target.attainment:
            self._doubtful[pool, shape] = max(count, self._doubtful.get((pool, shape), 0))

    def missed_on_stretch(self, candidate: Candidate) -> bool:
        """Whether a candidate's pools were too small for the busiest stretch."""
        if candidate.one_pool:
            return False
        return candidate.prefills <= self._doubtful.get(("prefill", candidate.prefill), 0) or (
            candidate.decodes <= self._doubtful.get(("decode", candidate.decode), 0)
        )

    def too_near(self, candidate: Candidate) -> bool:
        """Whether a candidate is closer to a lower bound than a shape with this many misses should be tried, if
        larger ones exist.
        """
        prefill, decode = candidate.prefill, candidate.decode
        if candidate.one_pool:
            count = self.both[candidate.both].least + (1 << self._misses[candidate.both]) - 1
            return candidate.decodes < min(count, self.space.budget // decode.npus)
        prefills = self.prefill[prefill].least + (1 << self._misses["prefill", prefill]) - 1
        decodes = self.decode[decode].least + (1 << self._misses["decode", decode]) - 1
        return candidate.prefills < min(prefills, self.space.most_prefills(prefill)) or (
            candidate.decodes < min(decodes, self.space.most_decodes(decode))
        )

    @property
    def best(self) -> Candidate | None:
        """The first candidate that met the target, in the order of this question."""
        holding = [one for one, verdict in self.tried.items() if verdict.holds(self.target)]
        key = order_of("least", self.space, self.target)
        return min(holding, key=lambda one: key(one, self.tried[one]), default=None)

    def untried(self) -> list[Candidate]:
        """Candidates that may hold, were not simulated, and would be cheaper than the best, in order of rank."""
        best = self.best
        found = []
        for candidate in self.space.candidates():
            if best is not None and candidate.npus >= best.npus:
                continue
            if candidate not in self.tried and self.open(candidate):
                found.append(candidate)
        return sorted(found, key=self.space.rank)

    def open(self, candidate: Candidate) -> bool:
        """Whether a candidate is not ruled out."""
        return self._out(candidate) is None

    def alike(self, one: Candidate, other: Candidate) -> bool:
        """Whether two that differ only in decode's batch limit must have the same result: batches stay far below both.

        Plans of one pool are excluded: running prompts count against their limit too.
        """
        if one.one_pool or other.one_pool:
            return False
        verdict = self.tried.get(one)
        same = replace(one, decode=other.decode) == other and one.decode.size == other.decode.size
        return same and verdict is not None and 2 * verdict.batch <= min(one.decode.limit, other.decode.limit)

    def reason(self, candidate: Candidate) -> str:
        """Why a candidate is not the plan; empty for the plan itself and for undecided ones."""
        best, verdict = self.best, self.tried.get(candidate)
        if candidate == best:
            return ""
        if verdict is not None and not verdict.holds(self.target):
            return verdict.why
        if best is not None and candidate.npus >= best.npus:
            return costs_more(candidate, best)
        return self._out(candidate) or ""

    def _out(self, candidate: Candidate) -> str | None:
        if candidate.one_pool:
            floor = self.both[candidate.both]
            return floor.why if candidate.decodes < floor.least else None
        floor = self.prefill[candidate.prefill]
        if candidate.prefills < floor.least:
            return floor.why
        floor = self.decode[candidate.decode]
        if candidate.decodes < floor.least:
            return floor.why
        return next((why for failed, why in self._failed if candidate.within(failed)), None)


def raise_floor(floors: dict[Kind, Floor], shape: Kind, least: int, why: str) -> None:
    """Effects: the shape's floor, if that is higher than before."""
    if least > floors[shape].least:
        floors[shape] = Floor(least, why)


def costs_more(candidate: Candidate, best: Candidate) -> str:
    """Why a plan that may meet the target is not chosen."""
    more = candidate.npus - best.npus
    return f"costs {more} NPUs more than {best.label}" if more else f"costs as much as {best.label} and holds no better"
