"""A data set that restarts when it ends."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from loadgen.errors import UsageError
from loadgen.plan import Conversation
from loadgen.workload.ports import Workload


@dataclass(frozen=True)
class Cycled:
    """Endless repetition of a finite workload.

    Times of the data set continue: each round starts at the end of the previous one plus the mean gap between its
    conversations, so that the transition has the data set's own rate.
    """

    workload: Workload

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the workload is empty, or if its times do not advance.
        """
        shift_s = 0.0
        while True:
            count, first_s, latest_s = 0, None, None
            for conversation in self.workload.conversations(rng):
                count += 1
                if conversation.arrival_s is None:
                    yield conversation
                    continue
                latest_s = conversation.arrival_s
                first_s = latest_s if first_s is None else first_s
                yield msgspec.structs.replace(conversation, arrival_s=latest_s + shift_s)
            if not count:
                raise UsageError("the data set holds no conversation that can be sent")
            if first_s is not None and latest_s is not None:
                extent_s = latest_s - first_s
                gap_s = extent_s / (count - 1) if count > 1 else latest_s
                if extent_s + gap_s <= 0:
                    raise UsageError(
                        "the data set's times do not advance, so that it cannot be cycled; give --request-rate"
                    )
                shift_s += extent_s + gap_s
