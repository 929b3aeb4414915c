"""Tenants with a system prompt of their own; system prompts may in turn share their beginnings.

The tenants are the leaves of a tree whose levels each hold an equal part of the system prompt. With `depth` 1 they
share no tokens; with `depth` 3, 8 tenants and 12 tokens (branching 2):

    level 0            A A A A                         B B B B           4 tokens each
    level 1      C C C C     D D D D             E E E E     F F F F
    level 2     g..   h..   i..   j..           k..   l..   m..   n..
    tenants    tenant-0  1     2     3             4     5     6     7

Tenants 0 and 1 share 8 tokens, 0 and 2 share 4, 0 and 4 none. `--gsp-...` flags of SGLang are the case of depth 1.
"""

from dataclasses import dataclass

import numpy as np

from loadgen.errors import UsageError
from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import WordSource
from loadgen.workload.source import Asker, Piece, Question, draw_seed, later_question, room_behind, with_prefix


@dataclass(frozen=True)
class SharedPrefix:
    """Source of prompts of several tenants.

    Attributes:
        question_tokens: length of what follows the system prompt, and of later turns.
        tenants: how many. system_prompt_tokens: length of each one's system prompt.
        depth: levels of the tree. branching: children of a node; None = the least that gives `tenants` leaves.
        zipf: popularity of the tenant of rank r (tenant-0 has rank 1) ~ 1 / r^zipf; 0 = all equal.
        system_role: send the system prompt as a system message (chat).
    """

    words: WordSource
    question_tokens: Lengths
    tenants: int = 8
    system_prompt_tokens: int = 256
    depth: int = 1
    branching: int | None = None
    zipf: float = 0.0
    system_role: bool = False

    def __post_init__(self) -> None:
        """Raises: UsageError for counts below 1, more levels than tokens, or a negative zipf exponent."""
        if self.tenants < 1 or self.depth < 1 or (self.branching is not None and self.branching < 1):
            raise UsageError("shared prefixes need at least one tenant, one level and one branch")
        if self.system_prompt_tokens < self.depth:
            raise UsageError(
                f"{self.system_prompt_tokens} tokens of system prompt cannot be split over {self.depth} levels"
            )
        if not self.zipf >= 0:
            raise UsageError(f"the zipf exponent must be at least 0, not {self.zipf}")

    @property
    def least_tokens(self) -> int:
        return self.system_prompt_tokens + self.question_tokens.least

    def open(self, rng: np.random.Generator) -> Asker:
        base_seed = draw_seed(rng)
        popularity = np.arange(1, self.tenants + 1, dtype=np.float64) ** -self.zipf
        cumulative = np.cumsum(popularity)
        return _TenantAsker(self, [self._prefix(base_seed, tenant) for tenant in range(self.tenants)], cumulative)

    def _prefix(self, base_seed: int, tenant: int) -> list[Piece]:
        """Pieces of a tenant's system prompt, one a level."""
        pieces = []
        for (level, node), n_tokens in zip(self._path(tenant), self._level_tokens(), strict=True):
            node_rng = np.random.default_rng([base_seed, level, node])
            pieces.append((draw_seed(node_rng), n_tokens))
        return pieces

    def _path(self, tenant: int) -> list[tuple[int, int]]:
        """(level, number within the level) of the nodes from the root's children down to a tenant."""
        branching = self.branching or self._least_branching()
        return [(level, tenant // branching ** (self.depth - 1 - level)) for level in range(self.depth)]

    def _least_branching(self) -> int:
        """Children a node for a tree of `depth` levels with at least `tenants` leaves."""
        branching = 1
        while branching**self.depth < self.tenants:
            branching += 1
        return branching

    def _level_tokens(self) -> list[int]:
        each, rest = divmod(self.system_prompt_tokens, self.depth)
        return [each + (level < rest) for level in range(self.depth)]


@dataclass(frozen=True)
class _TenantAsker:
    """`Asker` of `SharedPrefix`, with system prompts drawn. `cumulative`: running sums of popularity, `[tenants]`."""

    settings: SharedPrefix
    prefixes: list[list[Piece]]
    cumulative: np.ndarray[tuple[int], np.dtype[np.float64]]

    def first(self, rng: np.random.Generator, limit: int | None) -> Question:
        settings = self.settings
        drawn = float(rng.random()) * float(self.cumulative[-1])
        tenant = min(int(np.searchsorted(self.cumulative, drawn, side="right")), settings.tenants - 1)
        asked = settings.question_tokens.asked(rng)
        n_tokens = settings.question_tokens.fitted(asked, room_behind(settings.system_prompt_tokens, limit))
        return with_prefix(
            settings.words,
            self.prefixes[tenant],
            (draw_seed(rng), n_tokens),
            asked_tokens=asked,
            system_role=settings.system_role,
            tenant=f"tenant-{tenant}",
        )

    def later(self, rng: np.random.Generator) -> Question:
        settings = self.settings
        return later_question(settings.words, settings.question_tokens, rng)
