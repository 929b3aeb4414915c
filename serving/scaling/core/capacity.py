"""Measured capacity of instances: prompt tokens per second, sequences at once within the SLO, start time.

Read from what instances announce anyway: differences of their counters between two looks.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.learned_line import LearnedLine

# How many sequences an instance decodes at once within the promised time per token, learned from its work.
#
# The time per token is a line over the sequences at once (`learned_line.py`). The nearer an instance works to where the
# promise ends, the less the slope matters; and that is where it counts.

TPOT_SPREAD = 1.06
"""The slowest of a hundred requests takes so much longer per token than the mean: fewer of its drafts are accepted, and
its batch was fuller. Measured in virtual time with the ServeGen R1 day: 1.05 to 1.08 while the load is steady."""
CROWD_SPREAD = 1.04
"""The same of a crowd that stays no longer than an instance takes to start: the rest of a life makes up for it."""
SAME_BATCH = 0.25
"""Mean square of the moves below which they tell no slope [squared sequences]."""
FEWER = 0.5
"""Of the batch that there is: what fits is not said to be less, however slow tokens come. A line that is drawn further
would say anything, and with half as many it is drawn anew."""


@dataclass(slots=True)
class DecodeAbility:
    """Capacity of the instances of one pool, which are alike."""

    _line: LearnedLine = field(default_factory=lambda: LearnedLine(SAME_BATCH))

    def see(self, sequences: float, token_s: float, seconds: float) -> None:
        """An instance decoded so many sequences at once, each waiting `token_s` for a token, for `seconds` of work."""
        self._line.see(sequences, token_s, seconds)

    def most(self, promise_s: float, configured: float, spread: float = TPOT_SPREAD) -> float:
        """Sequences that one instance can decode at once so that 99 of 100 requests keep a promised time per token.

        Args:
            configured: that it may hold; the most there is, and the answer while nothing is known.
            spread: slowest of a hundred requests / mean.
        Returns: at least 1.
        """
        if not self._line.known:
            return configured
        batch, token_s = self._line.size, self._line.time_s
        limit_s, slope = promise_s / spread, self._line.slope_s
        if slope > 0:
            best = batch + (limit_s - token_s) / slope
        else:  # one batch size so far: within the promise nothing says where it ends
            best = configured if token_s <= limit_s else batch * limit_s / token_s
        return min(configured, max(1.0, FEWER * batch, best))


# Measured capacity of instances: prompt tokens per second, sequences at once within the SLO, start time.

START_S = 5.0
"""Before any start was seen."""
STARTS_KEPT = 8
PLACED_S = 3.0
"""A replica that has no node for longer than this waits for hardware, which is no part of its start."""
MIN_BUSY_S = 0.02
"""Shorter stretches of work say nothing: clocks and announcements are not that exact."""
SAME_TOKENS = 16.0**2
"""Mean square of the moves of a step's tokens below which they tell no slope."""
FURTHER = 4.0
"""The line is drawn to steps so many times as large as those of late, or as the largest that there were."""
PROMPT_SHARE = 8
"""Work counts as computing prompts when it read this many prompt tokens for each one that it generated."""


@dataclass(slots=True)
class PromptRate:
    """Prompt tokens per second of busy time in full steps, which an instance has at its limit.

    Much of a step costs the same however few its tokens are: what small steps achieve while little comes is no measure
    of what an instance can do. The time of a step is a line over its tokens (`learned_line.py`).
    """

    _line: LearnedLine = field(default_factory=lambda: LearnedLine(SAME_TOKENS))
    _largest: float = 0.0
    """Mean tokens of a step in the stretch with most."""

    def observe(self, tokens: float, busy_s: float, steps: int) -> None:
        """A stretch of work on prompts, of one step or more."""
        self._line.see(tokens / steps, busy_s / steps, busy_s)
        self._largest = max(self._largest, tokens / steps)

    def tokens_per_s(self, full: float) -> float:
        """The rate with so many tokens in a step; 0 = not known yet."""
        if not self._line.known:
            return 0.0
        size, step_s = self._line.size, self._line.time_s
        to = max(size, min(full, max(self._largest, FURTHER * size)))
        slope_s = min(self._line.slope_s or step_s / size, step_s / size)  # nothing is less than free
        return to / (step_s + slope_s * (to - size))


@dataclass(frozen=True, slots=True)
class _Before:
    """An instance's counters at the look before."""

    incarnation: str
    prompt_tokens: int
    generated_tokens: int
    busy_s: float
    running: int
    steps: int


class Abilities:
    """All measurements, pool by pool.

    Work is measured in the instances' own time, in which `[slo]` is promised, too; starts in real time.
    """

    def __init__(self) -> None:
        self._prompts: defaultdict[str, PromptRate] = defaultdict(PromptRate)
        self._decodes: defaultdict[str, DecodeAbility] = defaultdict(DecodeAbility)
        self._before: dict[str, _Before] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._starts: deque[float] = deque(maxlen=STARTS_KEPT)
        self._founded = False
        self._at = 0.0

    def observe(self, sight: ClusterSnapshot) -> None:
        """Learn from one look."""
        self._at = sight.at
        for name, member in sight.members.items():
            self._observe_work(name, member)
        self._before = {name: one for name, one in self._before.items() if name in sight.members}
        self._observe_starts(sight)

    def tokens_per_s(self, pool: str, full: int) -> float:
        """Prompt tokens that one instance of the pool computes per second; 0 = not known yet.

        Args:
            full: tokens of its largest step.
        """
        return self._prompts[pool].tokens_per_s(full)

    def most_sequences(self, pool: str, tpot_s: float, configured: int, spread: float = TPOT_SPREAD) -> float:
        """Implements `DecodeAbility.most`."""
        return self._decodes[pool].most(tpot_s, configured, spread)

    @property
    def start_s(self) -> float:
        """From a wish to a serving instance [s, of the machine's clock as the sights' times]; before any was seen to
        end, at least as long as the one that has gone on longest.
        """
        if self._starts:
            return median(self._starts)
        going_on = [self._at - began for began in self._began.values()] if self._founded else []
        return max([START_S, *going_on])

    def _observe_work(self, name: str, member: SeenMember) -> None:
        facts = member.facts
        now = _counters(member.incarnation, facts)
        before = self._before.get(name)
        if before is None or before.incarnation != now.incarnation:
            self._before[name] = now
            return
        busy = now.busy_s - before.busy_s
        steps = now.steps - before.steps
        if busy < MIN_BUSY_S or steps < 1:
            return
        self._before[name] = now
        prompts, generated = now.prompt_tokens - before.prompt_tokens, now.generated_tokens - before.generated_tokens
        if prompts > PROMPT_SHARE * generated:
            self._prompts[member.pool].observe(prompts, busy, now.steps - before.steps)
        elif generated > 0 and before.running and now.running:
            sequences = (before.running + now.running) / 2
            share = float(facts.get("share_of_capacity") or 1.0)
            token_s = busy * sequences / generated
            self._decodes[member.pool].see(sequences / share, token_s, busy)

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
        int(facts.get("steps_total", 0)),
    )
