"""Candidates of a plan: shapes of instances, how many of each, and how candidates compare. Pure values."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

DIES_PER_NPU = 2
NPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One kind of instance.

    Attributes:
        npus: of one instance; fixes the expert-parallel degree.
        limit: of its batch. Prefill: prompt tokens of a step for each NPU. Decode: sequences for each die.
        attention_tp: dies of a decode instance that share their sequences; of prefill as configured.
        expert_dies: dies of a decode instance that hold experts only; 0 = every die does both.
        redundant: copies of experts beyond one of each, of prefill instances too; with `[simulation] routing`, slots of
            each decode rank in addition to its share; -1 = the device file's value, or as configured.
    """

    npus: int
    limit: int
    attention_tp: int = 1
    expert_dies: int = 0
    redundant: int = -1

    @property
    def size(self) -> tuple[int, int, int, int]:
        """The kind of instance, without its batch limit."""
        return self.npus, self.attention_tp, self.expert_dies, self.redundant

    @property
    def division(self) -> str:
        """How a decode instance is divided, in short; empty where it is not.

        As in " TP4", " E96" for 96 dies of experts, " R32" for 32 redundant copies (or slots).
        """
        tp, experts, copies = self.attention_tp, self.expert_dies, self.redundant
        return f"{f' TP{tp}' * (tp > 1)}{f' E{experts}' * (experts > 0)}{f' R{copies}' * (copies >= 0)}"


Both = tuple[Shape, Shape]
"""An aggregated instance, as its chunks of prompts and its decoding sequences see it; of one size."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A split of NPUs: this many instances of one shape in each pool.

    Without prefill instances the decode instances do both: `prefill` is then the number of prompt tokens in their
    steps.
    """

    prefill: Shape
    prefills: int
    decode: Shape
    decodes: int

    @property
    def npus(self) -> int:
        """NPUs of both pools. The KV-cache pool takes none: it lives in the CPUs' memory of their nodes."""
        return self.prefills * self.prefill.npus + self.decodes * self.decode.npus

    @property
    def one_pool(self) -> bool:
        """Whether each instance prefills and decodes."""
        return self.prefills == 0

    @property
    def nodes(self) -> int:
        """Number of nodes with enough NPUs for both pools."""
        return -(-self.npus // NPUS_PER_NODE)

    @property
    def label(self) -> str:
        """The split in short: "6 x 16 + 1 x 160", with attention TP 4 in decode "6 x 16 + 1 x 160 TP4"."""
        if self.one_pool:
            return f"{self.decodes} x {self.decode.npus}{self.decode.division} aggregated"
        return f"{self.prefills} x {self.prefill.npus} + {self.decodes} x {self.decode.npus}{self.decode.division}"

    @property
    def limits(self) -> str:
        """The batch limits, for people."""
        return f"{self.prefill.limit:,} tokens/NPU, {self.decode.limit} sequences/die"

    @property
    def both(self) -> Both:
        """Kind of its instances, where each does both."""
        return self.prefill, self.decode

    def within(self, other: "Candidate") -> bool:
        """Whether it has the other's shapes and in no pool more instances, so that it cannot do better."""
        same = (self.both, self.one_pool) == (other.both, other.one_pool)
        return same and self.prefills <= other.prefills and self.decodes <= other.decodes


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All candidates.

    Attributes:
        prefill, decode: shapes, the preferred ones first: the order decides between plans that cost the same.
        budget: NPUs at most.
        both: aggregated instances, the preferred ones first.
    """

    prefill: tuple[Shape, ...]
    decode: tuple[Shape, ...]
    budget: int
    both: tuple[Both, ...] = ()

    def most_prefills(self, shape: Shape) -> int:
        """Instances that leave room for one decode instance."""
        return (self.budget - min((one.npus for one in self.decode), default=self.budget)) // shape.npus

    def most_decodes(self, shape: Shape) -> int:
        """Instances that leave room for one prefill instance."""
        return (self.budget - min((one.npus for one in self.prefill), default=self.budget)) // shape.npus

    def rank(self, candidate: Candidate) -> tuple[int, bool, int, int, int, int]:
        """Cheapest first; at the same cost two pools, by preference of shapes, then the fewest decode instances."""
        if candidate.one_pool:
            places = (self.both.index(candidate.both), 0)
        else:
            places = self.prefill.index(candidate.prefill), self.decode.index(candidate.decode)
        return candidate.npus, candidate.one_pool, sum(places), *places, candidate.decodes

    def plain(self) -> "SearchSpace":
        """The same sizes, each with its preferred batch limit only."""
        first: list[dict[tuple[int, int, int, int], Shape]] = [{}, {}]
        for sizes, shapes in zip(first, (self.prefill, self.decode), strict=True):
            for shape in shapes:
                sizes.setdefault(shape.size, shape)
        both: dict[tuple[int, int, int, int], Both] = {}
        for one in self.both:
            both.setdefault(one[1].size, one)
        return SearchSpace(tuple(first[0].values()), tuple(first[1].values()), self.budget, tuple(both.values()))

    def candidates(self) -> Iterator[Candidate]:
        """Every one that fits the budget."""
        for prefill in self.prefill:
            for decode in self.decode:
                for decodes in range(1, (self.budget - prefill.npus) // decode.npus + 1):
                    for prefills in range(1, (self.budget - decodes * decode.npus) // prefill.npus + 1):
                        yield Candidate(prefill, prefills, decode, decodes)
        for prompts, answers in self.both:
            for count in range(1, self.budget // answers.npus + 1):
                yield Candidate(prompts, 0, answers, count)

    def variants(self, candidate: Candidate) -> list[Candidate]:
        """The same split with another batch limit in one of the pools, or of aggregated instances."""
        if candidate.one_pool:
            others = [one for one in self.both if one[1].size == candidate.decode.size and one != candidate.both]
            return [replace(candidate, prefill=prompts, decode=answers) for prompts, answers in others]
        prefills = [one for one in self.prefill if one.size == candidate.prefill.size]
        decodes = [one for one in self.decode if one.size == candidate.decode.size]
        found = [replace(candidate, prefill=one) for one in prefills if one != candidate.prefill]
        return found + [replace(candidate, decode=one) for one in decodes if one != candidate.decode]
