"""Division of one instance's work over its dies: what stays the same from step to step, one value for each role.

Default values are the published placement: attention data-parallel in decode, laid out in prefill as the device file
says, LM head whole on every die, one expert-parallel group of all dies.
"""

from dataclasses import dataclass

from hardware.errors import SpecError


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One instance's degrees.

    Attributes:
        attention_tp: dies that share their sequences, each with its part of the heads and of dense feed-forwards.
        head_tp: dies that share the LM head, each with its part of the vocabulary.
    """

    attention_tp: int = 1
    head_tp: int = 1

    def __post_init__(self) -> None:
        for name in ("attention_tp", "head_tp"):
            value = getattr(self, name)
            if value < 1:
                raise SpecError(f"{name} is {value}; it must be a whole number of dies from 1 up")
            if value > 1:
                raise SpecError(f"{name} is {value}: only 1 is priced")


WHOLE = Parallelism()
"""The published placement."""
