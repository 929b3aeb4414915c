"""Trials of suspected sequences, one at a time, each alone on an instance until it is decoded."""

from collections import deque
from collections.abc import Mapping

from serving.errors import UnavailableError
from serving.gateway.core.instances import KnownInstance
from serving.gateway.core.journal_commands import NeedTrial
from serving.gateway.core.request_journal import Commands
from serving.gateway.core.route_choice import Routes
from serving.gateway.core.waiting_room import Choice
from serving.ids import ReplicaId, SequenceId
from serving.values.news import FailKind

EMPTYING_S = 30.0
"""Time for which an instance gets no new work so that it becomes empty. A replacement is empty when it starts."""


class Quarantine:
    """Trials of one gateway: chooses an instance for the suspected sequence, keeps it free of other work, and judges.

    A sequence is suspected once instances died while they computed it. `deaths` records which of them died together.

    Args:
        choices: all running sequences of the gateway.
    """

    def __init__(self, routes: Routes, choices: Mapping[SequenceId, Choice]) -> None:
        self.deaths = Deaths()
        self._routes = routes
        self._choices = choices
        self._tried: Choice | None = None
        self._seat: ReplicaId | None = None
        self._since = 0.0

    @property
    def closed(self) -> tuple[ReplicaId, ...]:
        """Instances reserved for the trial. Effects: ends a finished trial."""
        if self._tried is None:
            return ()
        if self._over(self._tried):
            self._tried = self._seat = None
        return () if self._seat is None else (self._seat,)

    def came(self, replica: ReplicaId) -> None:
        """Reserve a newly started, empty instance for the sequence that waits for a trial."""
        if self._tried is not None and isinstance(self._tried.need, NeedTrial):
            self._seat = replica

    def died(self, instance: KnownInstance, still_since: float | None, now: float) -> None:
        """Note that an instance was lost. An orderly exit is not a death."""
        if still_since != 0.0:
            self.deaths.note(instance.replica, now, shared=instance.busy > 1)

    def look(self, choice: Choice, need: NeedTrial, now: float) -> Commands:
        """Judge the last trial, or start one if there is an empty instance.

        No effect while instances may still be dying of one cause; call it again.
        """
        journal = choice.journal
        choice.need, choice.waiting_since = need, now if choice.waiting_since is None else choice.waiting_since
        if not self.deaths.settled(now):
            return ()
        if need.lost is not None:
            commands = journal.judged(need.lost, alone=self.deaths.alone(need.lost))
        else:
            try:
                slot = self._empty(choice, now)
            except UnavailableError as error:
                return journal.give_up(FailKind.UNAVAILABLE, str(error))
            if slot is None:
                return ()
            commands = journal.serve_whole(slot, now)
        choice.need = choice.waiting_since = None
        return commands

    def _empty(self, choice: Choice, now: float) -> ReplicaId | None:
        """The instance on which a sequence is alone; None = not yet.

        Raises: UnavailableError if none became empty in time.
        Effects: reserves the instance that will be empty first.
        """
        if self.closed and self._tried is not choice:
            return None
        if self._tried is not choice:
            self._tried, self._since = choice, now
        found = self._routes.idlest(choice.journal, now)
        if found is None:
            return None
        if self._seat not in found.among or not found.load:
            self._seat = found.replica
        if not found.load and all(one.journal.at != found.replica for one in self._choices.values()):
            return found.replica
        if now - self._since > EMPTYING_S:
            raise UnavailableError(f"it must run alone, but no instance became idle within {EMPTYING_S:g} s")
        return None

    def _over(self, choice: Choice) -> bool:
        if choice.journal.done or isinstance(choice.need, NeedTrial):
            return choice.journal.done
        return choice.journal.at != self._seat or not choice.journal.attempts.losses


# Times of instances' deaths, and which instances died together.
#
# A host takes down all its instances, and the kernel kills one after the other when memory runs out: an instance that
# dies within a second of another was not necessarily killed by its own work.

TOGETHER_S = 1.0
"""Deaths within this time of each other are one event."""
REMEMBERED_S = 60.0
"""Time for which a death is remembered."""
MAX_DEATHS = 1024
"""Deaths remembered; more instances may die within that time."""


class Deaths:
    """The latest deaths of instances, as observed by one gateway."""

    def __init__(self) -> None:
        self._deaths: deque[tuple[float, ReplicaId, bool]] = deque(maxlen=MAX_DEATHS)

    def note(self, replica: ReplicaId, now: float, *, shared: bool = False) -> None:
        """Note an instance's death, `shared` by several sequences. Effects: drops expired deaths."""
        while self._deaths and now - self._deaths[0][0] > REMEMBERED_S:
            self._deaths.popleft()
        self._deaths.append((now, replica, shared))

    def settled(self, now: float) -> bool:
        """Whether the last instance of a common death must be dead by now."""
        return not self._deaths or now - self._deaths[-1][0] > TOGETHER_S

    def together(self, replica: ReplicaId, now: float) -> bool:
        """Whether another instance died just before."""
        return any(who != replica and now - at <= TOGETHER_S for at, who, _ in self._deaths)

    def alone(self, replica: ReplicaId) -> bool:
        """Whether it had one sequence and no other instance died with it; only valid once `settled`."""
        own = next(((at, shared) for at, who, shared in reversed(self._deaths) if who == replica), None)
        if own is None:
            return False  # too long ago to be remembered
        when, shared = own
        return not shared and not any(who != replica and abs(at - when) <= TOGETHER_S for at, who, _ in self._deaths)
