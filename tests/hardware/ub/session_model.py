"""Pure model of sessions between attention ranks and expert ranks, and a search through everything that can happen.

A session asks the expert ranks that get rows of it, each by one word, and waits for one word back from exactly those.
Expert ranks serve any of the sessions that have asked. Ranks compute what they like between two words: such a *block*
is one action here, and two blocks that touch the same memory at the same time are an error, so that no order of single
stores has to be tried. What a rank was writing when it died is torn. Sessions of attention ranks are alike: states that
differ in their order only are one. So the search ends although any rank may die between any two actions.

A word says {epoch, round}; round 0 is an expert rank's *hello*: it is in that epoch, and at work for none before.
`bell_model.py` has the sleep of a rank that waits.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from tests.hardware.ub.session_state import (
    DEAD,
    END,
    LOST,
    TORN,
    Expert,
    Mistake,
    ProtocolError,
    Session,
    Setting,
    State,
)

T = TypeVar("T")

Op = tuple[str, int, int]
"""`await` the answers to a round (0: hellos), `block` (take in the results before a round, stage its rows), `ask` in a
round an expert rank."""


class Visited(NamedTuple):
    """Size of a search, and in which epochs sessions ended."""

    states: int
    endings: frozenset[int]


class Search:
    """All that can happen in a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        survivors = range(setting.experts - (setting.dies == "expert"))
        self.living = {1: range(setting.experts), 2: survivors}
        last = len(survivors) - 1
        moved = [last - x if x <= last else 0 for x in range(setting.experts)]
        self.homes = {1: list(range(setting.experts)), 2: moved}
        if setting.mistake is Mistake.SAME_MAP:
            self.homes[2] = self.homes[1]
        if setting.mistake is Mistake.HELLO_OF_THE_DEAD:
            self.living[2] = self.living[1]
        self.programs = {epoch: self._program(epoch) for epoch in (1, 2)}

    def run(self) -> Visited:
        """Visit every state.

        Raises: ProtocolError if memory is torn, of another round or just being written; or one waits for ever.
        """
        seen, endings = {self._first()}, set[int]()
        todo = list(seen)
        while todo:
            state = todo.pop()
            moves = list(self._moves(state))
            if not moves:
                endings |= self._endings(state)
            for after in moves:
                if not self.setting.colocated:
                    after = after._replace(sessions=tuple(sorted(after.sessions)))
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return Visited(len(seen), frozenset(endings))

    def moment(self, epoch: int, round_: int) -> int:
        """Payload of a round."""
        return epoch * 100 + round_

    def word(self, epoch: int, round_: int) -> int:
        """Word of a round."""
        if self.setting.mistake is Mistake.WORD_WITHOUT_EPOCH:
            epoch = 1
        return self.moment(epoch, min(round_, 1) if self.setting.mistake is Mistake.WORD_WITHOUT_ROUND else round_)

    def asked(self, epoch: int, round_: int) -> list[int]:
        """Expert ranks that get rows in a round."""
        return sorted({self.homes[epoch][x] for x in self._chosen(round_)})

    def _chosen(self, round_: int) -> range:
        """Experts that a session's rows choose: every second round only some."""
        count = self.setting.experts
        return range(count if round_ % 2 else -(-count // 2)) if round_ else range(0)

    def _cells(self, epoch: int, round_: int, rank: int) -> set[int]:
        """Results that a rank writes."""
        if self.setting.mistake is Mistake.RESULTS_BY_ROUND:
            return {0}
        return {x for x in self._chosen(round_) if self.homes[epoch][x] == rank}

    def _program(self, epoch: int) -> list[Op]:
        found: list[Op] = []
        for round_ in range(1, self.setting.rounds + 1):
            asks: list[Op] = [("ask", round_, rank) for rank in self.asked(epoch, round_)]
            block: list[Op] = [("block", round_, 0)]
            late = self.setting.mistake is Mistake.ASK_BEFORE_ROWS
            found += [("await", round_ - 1, 0), *(asks + block if late else block + asks)]
        return [*found, ("await", self.setting.rounds, 0), ("block", self.setting.rounds + 1, 0)]

    def _first(self) -> State:
        count = self.setting.experts
        nothing, hellos = (0,) * count, (self.word(1, 0),) * count
        first = Session(1, 0, 1, 0, nothing, nothing, hellos, nothing, nothing, mapped=(1,) * count)
        made = [first] * self.setting.sessions
        if self.setting.joins:
            made[-1] = made[-1]._replace(dones=nothing)
        if self.setting.idle:
            made[-1] = made[-1]._replace(place=END)
        made = made if self.setting.colocated else sorted(made)
        return State(tuple(made), (Expert(1, 1, False),) * count, False)

    def _moves(self, state: State) -> Iterator[State]:
        for number in range(len(state.sessions)):
            yield from self._session(state, number)
        for rank, one in enumerate(state.experts):
            if not one.dead:
                yield from self._expert(state, rank)
        yield from self._shell(state)

    # ---- an attention rank

    def _session(self, state: State, number: int) -> Iterator[State]:
        one = state.sessions[number]
        if one.place < 0 or (self.setting.colocated and any(other.serving[number] for other in state.sessions)):
            return
        kind, round_, rank = self.programs[one.epoch][one.place]
        if kind == "await":
            yield from self._await(state, number, round_)
        elif kind == "ask":
            asks = _put(one.asks, rank, self.word(one.epoch, round_))
            yield self._go_on(state, number, one._replace(asks=asks))
        else:
            for x in self._chosen(round_ - 1):
                at = 0 if self.setting.mistake is Mistake.RESULTS_BY_ROUND else x
                if one.results[at] != self.moment(one.epoch, round_ - 1):
                    raise ProtocolError(f"a session reads result {one.results[at]} in round {round_} of {one.epoch}")
            rows = self.moment(one.epoch, round_) if round_ <= self.setting.rounds else one.rows
            yield self._go_on(state, number, one._replace(rows=rows))

    def _go_on(self, state: State, number: int, after: Session) -> State:
        """The session comes to its next place; a block that begins there meets no other."""
        program = self.programs[after.epoch]
        place = after.place + 1 if after.place + 1 < len(program) else END
        if place != END and program[place][0] == "block":
            for rank, serving in enumerate(after.serving):
                if serving in (1, 3) and not state.experts[rank].dead and after.mapped[rank] == after.life:
                    raise ProtocolError(f"a session writes its rows while rank {rank} is at work for it")
        return _with(state, number, after._replace(place=place))

    def _await(self, state: State, number: int, round_: int) -> Iterator[State]:
        one, mistake = state.sessions[number], self.setting.mistake
        wanted = self.word(one.epoch, round_)
        from_whom = list(self.asked(one.epoch, round_) if round_ else self.living[one.epoch])
        there = [one.dones[rank] == wanted for rank in from_whom]
        if round_ == 0 and mistake is Mistake.NO_HELLO and one.epoch > 1:
            there = [True]
        if all(there) or (round_ and any(there) and mistake is Mistake.FIRST_DONE_IS_ENOUGH):
            yield self._go_on(state, number, one)
            return
        if self.setting.colocated:  # the expert rank's part takes up epochs
            if state.killed and one.epoch == 1:
                yield _with(state, number, one._replace(place=LOST))
        elif one.raised > one.epoch and mistake is not Mistake.EPOCH_UNSEEN:
            yield _with(state, number, one._replace(epoch=one.raised, place=0))

    # ---- an expert rank

    def _expert(self, state: State, rank: int) -> Iterator[State]:
        busy = [number for number, one in enumerate(state.sessions) if one.serving[rank]]
        if busy:
            yield from self._serve(state, rank, busy)
        expert = state.experts[rank]
        early = self.setting.mistake is Mistake.HELLO_IN_SERVICE
        if expert.raised > expert.epoch and (not busy or early) and self._may_enter(state, rank):
            yield self._begin_epoch(state, rank)
        if not busy or self.setting.mistake is Mistake.ADMIT_IN_SERVICE:
            yield from self._admit(state, rank)
        if busy:
            return
        if not self._is_free(state, rank):
            return
        ready = [number for number, one in enumerate(state.sessions) if self._has_asked(one, rank, expert.epoch)]
        for count in range(1, len(ready) + 1):
            for some in combinations(ready, count):
                yield self._begin_service(state, rank, some)

    def _admit(self, state: State, rank: int) -> Iterator[State]:
        """Map the window of a session that has joined, and say hello."""
        for number, one in enumerate(state.sessions):
            if one.dones[rank] or one.place == DEAD:
                continue
            if one.mapped[rank] != one.life:  # a dead rank had its place
                one = one._replace(mapped=_put(one.mapped, rank, one.life))
                if self.setting.mistake is not Mistake.OLD_ASK_STAYS:
                    one = one._replace(asks=_put(one.asks, rank, 0))
                if self.setting.mistake is not Mistake.OLD_ANSWER_COUNTS:
                    one = one._replace(answered=_put(one.answered, rank, 0))
            hello = self.word(state.experts[rank].epoch, 0)
            yield _with(state, number, one._replace(dones=_put(one.dones, rank, hello)))

    def _is_free(self, state: State, rank: int) -> bool:
        """Whether the rank's thread is not at work for a session of its own."""
        if not self.setting.colocated:
            return True
        one = state.sessions[rank]
        if one.place < 0:
            return one.place == END
        kind, round_, _ = self.programs[one.epoch][one.place]
        return kind == "await" and round_ > 0 and self.setting.mistake is not Mistake.WAIT_WITHOUT_SERVICE

    def _may_enter(self, state: State, rank: int) -> bool:
        """Between two services; a rank of both kinds where its session waits."""
        one = state.sessions[rank] if self.setting.colocated else None
        return one is None or one.place < 0 or self.programs[one.epoch][one.place][0] == "await"

    def _has_asked(self, one: Session, rank: int, epoch: int) -> bool:
        asked = one.asks[rank]
        return asked > one.answered[rank] and asked // 100 == self.word(epoch, 0) // 100

    def _begin_service(self, state: State, rank: int, some: Sequence[int]) -> State:
        epoch = state.experts[rank].epoch
        for number in some:
            one = state.sessions[number]
            op = self.programs[one.epoch][one.place][0] if one.place >= 0 else "await"
            if op == "block" and one.mapped[rank] == one.life:
                raise ProtocolError(f"rank {rank} reads rows that their session is just writing")
            cells = self._cells(epoch, one.asks[rank] % 100, rank)
            for other, serving in enumerate(one.serving):
                theirs = self._cells(state.experts[other].epoch, one.asks[other] % 100, other)
                if serving in (1, 3) and cells & theirs and one.mapped[rank] == one.mapped[other]:
                    raise ProtocolError(f"ranks {rank} and {other} write the same result")
            state = _with(state, number, one._replace(serving=_put(one.serving, rank, 1)))
        return state

    def _serve(self, state: State, rank: int, busy: Sequence[int]) -> Iterator[State]:
        """The block of a service ends with the first word; further words follow one by one."""
        epoch = state.experts[rank].epoch
        early = self.setting.mistake is Mistake.DONE_BEFORE_RESULTS
        for number in busy:
            one = state.sessions[number]
            if one.serving[rank] == (3 if early else 1):
                one = self._write(one, rank, epoch)
                state = _with(state, number, one._replace(serving=_put(one.serving, rank, 0 if early else 2)))
        for number in busy:
            one, left = state.sessions[number], 3 if early else 0
            if one.serving[rank] == (1 if early else 2):
                dones, answered = _put(one.dones, rank, one.asks[rank]), _put(one.answered, rank, one.asks[rank])
                dones = dones if one.mapped[rank] == one.life else one.dones
                one = one._replace(dones=dones, answered=answered, serving=_put(one.serving, rank, left))
                state = _with(state, number, one)
                break
        yield state

    def _write(self, one: Session, rank: int, epoch: int) -> Session:
        asked = one.asks[rank]
        if one.mapped[rank] != one.life:  # a dead rank's window
            return one
        if self.setting.mistake is None and one.rows != asked:
            raise ProtocolError(f"rank {rank} reads rows {one.rows} for round {asked}")
        for x in self._cells(epoch, asked % 100, rank):
            one = one._replace(results=_put(one.results, x, one.rows))
        return one

    def _begin_epoch(self, state: State, rank: int) -> State:
        """Hello to all: whoever looks later could as well have been told later."""
        epoch = state.experts[rank].raised
        sessions = []
        for number, one in enumerate(state.sessions):
            if one.place not in (END, DEAD):
                one = one._replace(dones=_put(one.dones, rank, self.word(epoch, 0)))
            one = one._replace(answered=_put(one.answered, rank, 0))
            if self.setting.colocated and number == rank and one.place != END:
                one = one._replace(epoch=epoch, place=0)
            sessions.append(one)
        experts = _put(state.experts, rank, state.experts[rank]._replace(epoch=epoch))
        return State(tuple(sessions), experts, state.killed)

    # ---- the shell, and death

    def _shell(self, state: State) -> Iterator[State]:
        dies = self.setting.dies
        if self.setting.again:
            for number, session in enumerate(state.sessions):
                if session.place == DEAD:
                    yield self._with_rank(state, number, self._newcomer)
        if not state.killed:
            yield from self._deaths(state)
            return
        if dies != "expert":
            return
        for rank, one in enumerate(state.experts):
            if not one.dead and one.raised == 1:
                yield state._replace(experts=_put(state.experts, rank, one._replace(raised=2)))
        for number, session in enumerate(state.sessions):
            if not self.setting.colocated and session.raised == 1 and session.place not in (END, DEAD):
                yield _with(state, number, session._replace(raised=2))

    def _deaths(self, state: State) -> Iterator[State]:
        if self.setting.dies == "attention":
            for number in range(len(state.sessions)):
                yield self._with_rank(state, number, self._dead)._replace(killed=True)
        if self.setting.dies != "expert":
            return
        rank = self.setting.experts - 1
        sessions = tuple(self._without(one, rank, state.experts[rank].epoch) for one in state.sessions)
        if self.setting.colocated:
            sessions = _put(sessions, rank, self._dead(sessions[rank]))
        yield State(sessions, _put(state.experts, rank, state.experts[rank]._replace(dead=True)), True)

    def _with_rank(self, state: State, number: int, change: Callable[[Session], Session]) -> State:
        """All sessions of this one's rank change at once."""
        for each in range(self.setting.sessions) if self.setting.halves else (number,):
            state = _with(state, each, change(state.sessions[each]))
        return state

    def _dead(self, one: Session) -> Session:
        writing = one.place >= 0 and self.programs[one.epoch][one.place][0] == "block"
        return one._replace(place=DEAD, rows=TORN if writing else one.rows)

    def _newcomer(self, one: Session) -> Session:
        """Another rank in a dead one's place, with a window of its own; expert ranks know of it later."""
        nothing = (0,) * self.setting.experts
        return one._replace(place=0, rows=0, results=nothing, dones=nothing, life=one.life + 1)

    def _without(self, one: Session, rank: int, epoch: int) -> Session:
        """A session after the death of an expert rank: results under way are torn."""
        if one.serving[rank] in (1, 3):
            for x in self._cells(epoch, one.asks[rank] % 100, rank):
                one = one._replace(results=_put(one.results, x, TORN))
        return one._replace(serving=_put(one.serving, rank, 0))

    def _endings(self, state: State) -> set[int]:
        """Raises: ProtocolError if a session still waits."""
        for one in state.sessions:
            if one.place not in (END, DEAD):
                raise ProtocolError(f"a session waits for ever in epoch {one.epoch}, at {one.place}")
        return {one.epoch for one in state.sessions if one.place == END}


def _put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _with(state: State, number: int, one: Session) -> State:
    return state._replace(sessions=_put(state.sessions, number, one))
