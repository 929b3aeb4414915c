"""A finite workload given as a list, as data sets are."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.plan import Conversation, Turn


@dataclass(frozen=True)
class Listed:
    """Conversations in a fixed order."""

    listed: tuple[Conversation, ...]

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        yield from self.listed


def at(*times: float | None) -> Listed:
    """One conversation for each time; its prompt is its number."""
    return Listed(
        tuple(
            Conversation(turns=[Turn(prompt=str(number), output_tokens=1)], arrival_s=time)
            for number, time in enumerate(times)
        )
    )


def prompt(conversation: Conversation) -> str:
    """The first prompt."""
    return str(conversation.turns[0].prompt)
