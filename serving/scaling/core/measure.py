"""Measured capacity of instances: prompt tokens per second, sequences at once within the SLO, start time.

Read from what instances announce anyway: differences of their counters between two looks.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.decode_ability import TPOT_SPREAD, DecodeAbility

START_S = 5.0
"""Before any start was seen."""
STARTS_KEPT = 8
PLACED_S = 3.0
"""A replica that has no node for longer than this waits for hardware, which is no part of its start."""
HALF_LIFE_S = 30.0
"""Of busy time: a measurement counts half after an instance has worked for as long again."""
MIN_BUSY_S = 0.02
"""Shorter stretches of work say nothing: clocks and announcements are not that exact."""
PROMPT_SHARE = 8
"""Work counts as computing prompts when it read this many prompt tokens for each one that it generated."""


@dataclass(slots=True)
class PromptRate:
    """Prompt tokens per second of busy time; recent work counts most, much work more than little."""

    tokens: float = 0.0
    seconds: float = 0.0

    def observe(self, tokens: float, busy_s: float) -> None:
        """A stretch of work on prompts."""
        keep = 0.5 ** (busy_s / HALF_LIFE_S)
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + busy_s

    @property
    def tokens_per_s(self) -> float:
        """0 = not known yet."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _Before:
    """An instance's counters at the look before."""

    incarnation: str
    prompt_tokens: int
    generated_tokens: int
    busy_s: float
    running: int


class Abilities:
    """All measurements, pool by pool.

    Work is measured in the instances' own time, in which `[slo]` is promised, too; starts in real time.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, PromptRate] = {}
        self._decodes: dict[str, DecodeAbility] = {}
        self._before: dict[str, _Before] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._starts: deque[float] = deque(maxlen=STARTS_KEPT)
        self._founded = False

    def observe(self, sight: ClusterSnapshot) -> None:
        """Learn from one look."""
        for name, member in sight.members.items():
            self._observe_work(name, member)
        self._before = {name: one for name, one in self._before.items() if name in sight.members}
        self._observe_starts(sight)

    def tokens_per_s(self, pool: str) -> float:
        """Prompt tokens that one busy instance of the pool computes per second; 0 = not known yet."""
        return self._prompts.get(pool, PromptRate()).tokens_per_s

    def most_sequences(self, pool: str, tpot_s: float, configured: int, spread: float = TPOT_SPREAD) -> float:
        """Implements `DecodeAbility.most`."""
        return self._decodes.get(pool, DecodeAbility()).most(tpot_s, configured, spread)

    @property
    def start_s(self) -> float:
        """From a wish to a serving instance [s, of the machine's clock as the sights' times]."""
        return median(self._starts) if self._starts else START_S

    def _observe_work(self, name: str, member: SeenMember) -> None:
        facts = member.facts
        now = _counters(member.incarnation, facts)
        before = self._before.get(name)
        if before is None or before.incarnation != now.incarnation:
            self._before[name] = now
            return
        busy = now.busy_s - before.busy_s
        if busy < MIN_BUSY_S:
            return
        self._before[name] = now
        prompts, generated = now.prompt_tokens - before.prompt_tokens, now.generated_tokens - before.generated_tokens
        if prompts > PROMPT_SHARE * generated:
            self._prompts.setdefault(member.pool, PromptRate()).observe(prompts, busy)
        elif generated > 0 and before.running and now.running:
            sequences = (before.running + now.running) / 2
            self._decodes.setdefault(member.pool, DecodeAbility()).see(sequences, busy * sequences / generated, busy)

    def _observe_starts(self, sight: ClusterSnapshot) -> None:
        seen = set()
        for pool, deployment in sight.deployments.items():
            for replica in deployment.replicas:
                key = pool, replica.name
                seen.add(key)
                if replica.phase is ReplicaPhase.STARTING:
                    began = self._began.setdefault(key, replica.started_at or sight.at)
                    if replica.node is None and sight.at - began > PLACED_S:  # it waits for hardware
                        self._began[key] = sight.at
                elif replica.phase is ReplicaPhase.SERVING and key in self._began:
                    self._starts.append(max(0.0, sight.at - self._began.pop(key)))
        if not self._founded and sight.deployments:  # those of the system's own start say little about later ones
            self._founded = not any(d.starting for d in sight.deployments.values())
            self._starts.clear()
        self._began = {key: at for key, at in self._began.items() if key in seen}


def _counters(incarnation: str, facts: Mapping[str, Any]) -> _Before:
    return _Before(
        incarnation,
        int(facts.get("prompt_tokens_total", 0)),
        int(facts.get("generated_tokens_total", 0)),
        float(facts.get("busy_s", 0.0)),
        int(facts.get("running", 0)),
    )
