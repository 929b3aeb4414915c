"""Order of waiting requests: keys share by tokens, and within a key lower priority values go first.

Every key has its own line and a virtual time: the tokens that it received, divided by its weight. The line with the
least virtual time is next, so that keys that always have requests waiting receive tokens in proportion to their
weights, regardless of the demand of others. A key that returns does not catch up on unused tokens: its virtual time
starts at that of the line that was served last.

Within a line the lowest priority value is next, then the request that is due first (in order of jobs, see `job_order`),
then the oldest; but every eighth start of a line is its oldest
request. So no request waits forever: with n older ones in its line it starts within 8 * (n + 1) starts of that line.

Background requests are the exception: they have lines of their own, whose turn comes when no other line has a request.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, nsmallest

from serving.errors import LedgerError
from serving.gateway.core.gateway_admission import QueuedRequest
from serving.values.sequence import BACKGROUND_PRIORITY

OLDEST_EVERY = 8


class _Line:
    """Waiting requests of one key."""

    __slots__ = ("background", "by_priority", "order", "starts", "tokens", "tokens_of", "virtual", "weight")

    def __init__(self, weight: float, virtual: float, *, background: bool = False) -> None:
        self.background = background
        self.weight = weight
        self.virtual = virtual
        self.starts = 0
        self.tokens = 0
        self.tokens_of: Counter[int] = Counter()
        """Queued tokens by priority."""
        self.order: OrderedDict[int, QueuedRequest] = OrderedDict()
        """Requests by number, oldest first."""
        self.by_priority: list[tuple[int, float, int]] = []
        """(priority, due, number); entries of requests removed otherwise stay until they reach the front."""

    def next(self) -> QueuedRequest:
        if self.starts % OLDEST_EVERY == OLDEST_EVERY - 1:
            return next(iter(self.order.values()))
        while self.by_priority[0][2] not in self.order:
            heappop(self.by_priority)
        return self.order[self.by_priority[0][2]]


def _turn(one: QueuedRequest) -> tuple[int, float, int]:
    return one.priority, one.due, one.number


def _line_turn(line: _Line) -> tuple[bool, float]:
    return line.background, line.virtual


class FairLines:
    """The lines of all keys. Numbers must increase with time: they are the order of arrival."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._key_of: OrderedDict[int, str] = OrderedDict()
        self._virtual = 0.0
        """Virtual time of the last served line when it was served."""
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._key_of)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (self._lines[key].order[number] for number, key in self._key_of.items())

    def add(self, one: QueuedRequest) -> None:
        """Put a request in its line.

        Raises: LedgerError if it is in a line already.
        """
        if one.number in self._key_of:
            raise LedgerError(f"request {one.number} is already queued")
        line = self._lines.get(one.key)
        if line is None:
            background = one.priority >= BACKGROUND_PRIORITY
            line = self._lines[one.key] = _Line(one.weight, self._virtual, background=background)
        elif not line.order:
            line.virtual = max(line.virtual, self._virtual)
        line.weight = one.weight
        line.order[one.number] = one
        line.tokens += one.tokens
        line.tokens_of[one.priority] += one.tokens
        heappush(line.by_priority, _turn(one))
        self._key_of[one.number] = one.key
        self.tokens += one.tokens

    def next(self, held: Callable[[QueuedRequest], bool] | None = None) -> QueuedRequest | None:
        """The request to start next.

        Args:
            held: whether a request's key must not start one now, so that others may overtake it.
        """
        if not self._key_of:
            return None
        waiting = [line for line in self._lines.values() if line.order]
        if held is None:
            return min(waiting, key=_line_turn).next()
        firsts = (line.next() for line in sorted(waiting, key=_line_turn))
        return next((one for one in firsts if not held(one)), None)

    def upcoming(self, most: int) -> list[QueuedRequest]:
        """About the next requests to start: of the lines that are next, the first ones of each."""
        waiting = sorted([line for line in self._lines.values() if line.order], key=_line_turn)[:most]
        share = -(-most // max(1, len(waiting)))
        return [one for line in waiting for one in nsmallest(share, line.order.values(), key=_turn)][:most]

    def start(self, one: QueuedRequest) -> None:
        """Start a request and charge its key. Effects: drops empty lines that are not ahead in virtual time."""
        line = self._lines[one.key]
        if not line.background:  # its virtual time lags behind that of lines which never wait for others
            self._virtual = line.virtual
        line.virtual += (one.tokens + one.expected_tokens) / line.weight
        line.starts += 1
        self.remove(one.number)
        for key, other in list(self._lines.items()) if len(self._lines) > 1 else ():
            if not other.order and other.virtual <= self._virtual:
                del self._lines[key]

    def remove(self, number: int) -> QueuedRequest | None:
        """Remove a request from its line. Returns: the request; None if it was not waiting."""
        key = self._key_of.pop(number, None)
        if key is None:
            return None
        line = self._lines[key]
        one = line.order.pop(number)
        line.tokens -= one.tokens
        line.tokens_of[one.priority] -= one.tokens
        if not line.tokens_of[one.priority]:
            del line.tokens_of[one.priority]
        self.tokens -= one.tokens
        if len(line.by_priority) > 2 * len(line.order) + 64:
            line.by_priority = [*map(_turn, line.order.values())]
            heapify(line.by_priority)
        return one

    def of(self, key: str) -> tuple[int, int]:
        """Waiting requests of a key, and their tokens."""
        line = self._lines.get(key)
        return (len(line.order), line.tokens) if line is not None else (0, 0)

    def ahead(self, new: QueuedRequest) -> float:
        """Tokens of its key's line that start before a new request."""
        line = self._lines.get(new.key)
        if line is None:
            return 0.0
        if new.due:
            before = sum([one.tokens for one in line.order.values() if _turn(one) < _turn(new)])
        else:
            before = sum([tokens for other, tokens in line.tokens_of.items() if other <= new.priority])
        return min(float(line.tokens), before * OLDEST_EVERY / (OLDEST_EVERY - 1))

    def share(self, key: str, weight: float) -> float:
        """Share of starts that a key gets while all waiting keys keep waiting. Background lines take none of it."""
        waiting = [line for name, line in self._lines.items() if line.order and name != key]
        others = sum([line.weight for line in waiting if not line.background])
        return weight / (weight + others)

    def check(self) -> None:
        """Check that lines and sums agree.

        Raises: LedgerError if they do not.
        """
        numbers = {number: key for key, line in self._lines.items() for number in line.order}
        sums = [sum(one.tokens for one in line.order.values()) for line in self._lines.values()]
        if numbers != dict(self._key_of) or sum(sums) != self.tokens:
            raise LedgerError("the lines do not match the queued requests")
        if [line.tokens for line in self._lines.values()] != sums:
            raise LedgerError("a line's tokens do not match its requests")
        for line in self._lines.values():
            if sum(line.tokens_of.values()) != line.tokens:
                raise LedgerError("a line's tokens by priority do not sum up to its tokens")
            if not set(map(_turn, line.order.values())) <= set(line.by_priority):
                raise LedgerError("a request would never be found by its priority")
