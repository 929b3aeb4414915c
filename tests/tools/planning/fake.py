"""A fake supernode: prefill determines TTFT, decode determines TPOT; more instances are better."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.tools.planning.candidate import Both, Candidate, Shape
from serving.tools.planning.verdict import PlanProbe, PlanVerdict


@dataclass
class FakeSupernode:
    """Attainments by pool: `needs[shape]` instances meet every SLO, each one less misses a quarter more.

    Aggregated instances miss both limits alike.
    """

    prefill_needs: dict[Shape, int]
    decode_needs: dict[Shape, int]
    batch: float = 1e9
    asked: list[PlanProbe] = field(default_factory=list)
    both_needs: dict[Both, int] = field(default_factory=dict)

    def evaluate(self, probes: Sequence[PlanProbe]) -> list[PlanVerdict]:
        """Replaces `serving.tools.planning.planner.evaluator`."""
        self.asked += probes
        return [self.verdict(one.candidate, one.rate) for one in probes]

    def verdict(self, one: Candidate, rate: float = 1.0) -> PlanVerdict:
        """Misses of both pools hit different requests."""
        if one.one_pool:
            ttft = tpot = both = _share(one.decodes, rate * self.both_needs[one.both])
        else:
            ttft = _share(one.prefills, rate * self.prefill_needs[one.prefill])
            tpot = _share(one.decodes, rate * self.decode_needs[one.decode])
            both = max(0.0, ttft + tpot - 1)
        why = f"TTFT {ttft:g}, TPOT {tpot:g}"
        return PlanVerdict(both, ttft, tpot, both * rate, 1.0, 0.01, 0.0, 0.0, 0.5, 0.5, self.batch, why)


def _share(there: int, needed: float) -> float:
    missing = max(0.0, needed - there)
    return 0.75**missing if missing >= 1 else 1 - 0.25 * missing
