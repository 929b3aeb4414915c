"""How often a sequence may go wrong: failures in a row, and the instances that died with it.

A long stream meets many failures that are not its fault, so only failures without progress count: a token that an
instance delivered while it decoded clears the record. The token of a prompt does not, else a request that every
instance fails on as soon as it decodes would come back for ever, one token richer each time; it only excuses the
instance that computed the prompt and was to do no more.

A request that kills the engine which works on it looks like any other at first. What gives it away is that it takes
one instance after the other down before there is another token of it. Two are enough for a request that was never
decoded. One that was for a while is more likely to have been near by, twice, when instances died for other reasons: it
takes three.
"""

from serving.ids import ReplicaId

POISON_LOSSES = 2
"""Instances lost in a row, without a token in between, that make a sequence the cause if it was never decoded."""
STREAM_LOSSES = 3
"""The same if it was."""


class Attempts:
    """What went wrong with one sequence since it last made progress."""

    __slots__ = ("_decoded", "_max_failures", "_told", "excluded", "in_a_row", "losses", "total")

    def __init__(self, max_failures: int) -> None:
        """
        Args:
            max_failures: failures in a row, of any kind, after which the sequence is given up.
        """
        self._max_failures = max_failures
        self._told = False
        self._decoded = False
        self.in_a_row = 0
        """Failures without progress in between."""
        self.total = 0
        """Failures in its whole life."""
        self.losses = 0
        """Instances that were lost while they worked on it, in a row."""
        self.excluded: list[ReplicaId] = []
        """Instances that failed it; others are better."""

    def sent(self) -> None:
        """It goes to an instance. Effects: progress counts from here."""
        self._told = False

    def progress(self, *, decoding: bool) -> None:
        """The instance delivered a new token.

        Args:
            decoding: by decoding, not as the one token of a finished prompt.
        """
        self._told = True
        if decoding:
            self._decoded = True
            self.in_a_row = self.losses = 0

    def avoid(self, replica: ReplicaId | None) -> None:
        """Prefer others from now on. Effects: extends `excluded`."""
        if replica is not None and replica not in self.excluded:
            self.excluded.append(replica)

    def failed(self, replica: ReplicaId | None) -> bool:
        """Count a failure. Returns: whether another try is left."""
        self.avoid(replica)
        self.total += 1
        self.in_a_row = 1 if self._told else self.in_a_row + 1
        return self.in_a_row < self._max_failures

    def lost(self) -> bool:
        """Count the loss of the instance that worked on it; `failed` is told as well.

        Returns: whether the sequence itself must be taken for the cause.
        """
        self.losses = 0 if self._told else self.losses + 1
        return self.losses >= (STREAM_LOSSES if self._decoded else POISON_LOSSES)

    def spent(self, reason: str) -> str:
        """Why it is given up after the last failure."""
        return f"{reason}; given up after {self.in_a_row} attempts"

    def cause(self, replica: ReplicaId) -> str:
        """Why it is given up after the last loss."""
        return (
            f"{self.losses} instances in a row, {replica} the last of them, were lost before they gave a token of this "
            "request; it is taken for the cause and not tried again"
        )
