"""A decode instance in virtual time: DP groups that iterate in lockstep, because experts are spread over all of them.

    boundary   n        n+1       n+2       n+3                 one iteration = one decode step of every group
    group 0    |== plan of three iterations ==|== ...
    group 1    |== plan, cut by an event ==|== with the new sequence ...
    duration   of each iteration: by the fullest group, and the mean over all

Only groups with an event at a boundary are visited; the others continue their plans. Iterations have equal durations
between two boundaries with events, for at most `REFRESH_STEPS` iterations.
"""

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from serving.ids import ReplicaId, SequenceId
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.settings import EngineSettings
from serving.values.orders import Add, Adopt, Cancel, Order, Release
from serving.values.sequence import SequenceSpec
from serving.virtual.decode_group import DecodeGroup, DecodeGroups
from serving.virtual.instance import InstanceInVirtualTime
from serving.virtual.instance_driver import DriverContext, InstanceDriver, WakeTimer
from serving.virtual.ports import WorkDone

REFRESH_STEPS = 64
"""Contexts grow by about a hundred tokens in this time; durations are computed for the middle of the growth."""
_ROUNDING = 1e-9


class DecodeInstance(InstanceInVirtualTime):
    """Decode instance: adopts handoffs and generates tokens.

    Args:
        settings, kv_blocks: of one DP group.
        slowdown: factor on the duration of an iteration, given its number: stragglers, jitter.
        refresh: iterations after which the duration is recomputed at the latest.
        at_once: as in `DecodeGroup`.
    Attributes:
        groups: its DP groups.
        batch: sequences decoded by the running iteration.
        step_s: duration of the running iteration [s]; 0 if none runs.
    """

    def __init__(
        self,
        name: ReplicaId,
        pool: str,
        npus: int,
        groups: int,
        settings: EngineSettings,
        kv_blocks: int,
        around: DriverContext,
        slowdown: Callable[[int], float],
        drafts: int,
        acceptance: float | tuple[float, ...],
        refresh: int = REFRESH_STEPS,
        at_once: int = 1 << 30,
    ) -> None:
        super().__init__(name, pool, npus)
        self.kv_blocks = kv_blocks * groups
        self.batch = 0
        self.step_s = 0.0
        self._queue = around.queue
        self._times = around.times
        self._around = around
        self._settings = settings
        self._drafts, self._acceptance, self._at_once = drafts, acceptance, at_once
        self._die_blocks = kv_blocks
        self._step_groups = 0
        """Number of groups for the step-time prediction; 0 = as configured."""
        self._slowdown = slowdown
        self._refresh = refresh
        self._booked: dict[SequenceId, tuple[int, int]] = {}
        self._block_tokens = settings.block_tokens
        self.groups = DecodeGroups(self._group, groups, settings.max_sequences, kv_blocks)
        self._balance = self.groups.balance
        self._groups = self.groups.items
        self._timers: dict[int, WakeTimer] = {}
        # The lockstep clock: boundary `_at_iteration` was at `_at_s`, the following ones are `step_s` apart.
        self._at_iteration = 0
        self._at_s = 0.0
        self._due: list[tuple[int, int]] = []
        self._version = 0
        self._running = 0
        self._planned_at = -1.0
        self._still_until = 0.0
        self._work_s = 0.0
        """`step_s` without stalls [s]."""

    def _group(self, die: int) -> DecodeGroup:
        engine = InstanceEngine(self._settings, self._die_blocks)
        seat = InstanceDriver(engine, self.name, die, self._around, self._kick, self._ended)
        return DecodeGroup(seat, self._drafts, self._acceptance, self._at_once)

    # ---- orders ----------------------------------------------------------------------------------------------------

    def take(self, order: Order) -> None:
        """Execute a command of a gateway.

        A decode instance receives `Add` when no prefill instance could take the prompt, and `Release` when another
        instance has pulled a stream that moved out.
        """
        match order:
            case Add(spec=spec) | Adopt(spec=spec):
                self._place(spec).take(order)
                return
            case Cancel(sequence_id=sequence_id):
                booked = self._booked.get(sequence_id)
            case Release(ticket_id=ticket_id):
                booked = self._booked.get(SequenceId(ticket_id.rpartition("!")[0]))
        if booked is not None:
            self._groups[booked[0]].seat.take(order)

    def drain(self) -> None:
        """Accept no new sequences."""
        for group in self._groups:
            group.seat.drain()

    def at_rest(self) -> bool:
        """Whether the engines of all groups hold nothing; see `InstanceDriver.at_rest`."""
        return all([group.seat.at_rest() for group in self._groups])

    def move_out(self) -> None:
        """Hold all sequences at the next boundary for other instances to pull and continue."""
        self.groups.move_out()

    def resize(self, groups: int, npus: int, pause_s: float) -> None:
        """Change the number of groups; all of them are open afterwards. Removed groups must be empty.

        Args:
            npus: NPUs of the groups.
            pause_s: stall of the instance [s].
        """
        self.groups.resize(groups)
        self._timers = {die: timer for die, timer in self._timers.items() if die < groups}
        self._due = [(at, die) for at, die in self._due if die < groups]
        heapify(self._due)
        self._step_groups = groups
        self.npus, self.kv_blocks = npus, groups * self._die_blocks
        self.stall(pause_s)

    def die(self) -> None:
        """Lose all sequences. Gateways have received the tokens generated up to the last boundary."""
        if self._running:
            last = self._last_boundary()
            if passed := last - self._at_iteration:
                self._count(last, self._at_s + passed * self.step_s)
            for group in self._groups:
                if group.running and last > group.begins:
                    self.meter.output_tokens += group.finish(last, self._queue.now)
        self.alive = False
        self._version += 1
        for group in self._groups:
            group.seat.dead = True
        self._booked.clear()

    def stall(self, seconds: float) -> None:
        """Stall for some time [s] from the next boundary on, for a group rebuild, a repeated step or a late launch."""
        starts = self._queue.now
        if self.step_s:
            starts = self._at_s + (self._next_boundary() - self._at_iteration) * self.step_s
        self._still_until = max(self._still_until, starts) + seconds
        self.change_pace()

    def repeat(self, steps: float) -> None:
        """Repeat the computation of the running iteration `steps` times, without its stalls."""
        self.stall(steps * self._work_s)

    def change_pace(self) -> None:
        """Recompute the iteration time at the next boundary, after the slowdown of the instance has changed."""
        if self.step_s and self.alive:
            heappush(self._due, (self._next_boundary(), 0))
            self._schedule()

    def lose_die(self, die: int, share: float) -> tuple[int, int]:
        """Lose the KV of a share of a die's sequences; they start again on other instances.

        Returns: sequences lost, and tokens that must be recomputed.
        """
        group = self._groups[die]
        if group.running and (last := self._last_boundary()) > group.begins:
            self.meter.output_tokens += group.finish(last, self._queue.now)
            group.ends = self._next_boundary()
            self._running -= 1
            heappush(self._due, (group.ends, die))
            self._schedule()
        inside = [one for one, (at, _) in self._booked.items() if at == die]
        lost = inside[: math.ceil(len(inside) * share)]
        tokens = 0
        for sequence_id in lost:
            tokens += group.seat.lose(sequence_id)
        return len(lost), tokens

    # ---- state -----------------------------------------------------------------------------------------------------

    @property
    def sequences(self) -> int:
        """Number of sequences on the instance, in any phase."""
        return len(self._booked)

    def inside(self) -> list[SequenceId]:
        """Sequences on the instance, in any phase."""
        return list(self._booked)

    def status(self) -> tuple[int, int, int]:
        """Tokens to be computed (0), sequences on the instance, free KV blocks."""
        return 0, len(self._booked), self.groups.free_blocks()

    def bounds(self) -> tuple[int, int]:
        """Most sequences and most step tokens of the open groups; the others accept no sequences."""
        groups, settings = self._balance.open, self._settings
        return groups * settings.max_sequences, groups * settings.max_step_tokens

    def tokens_per_s(self) -> float:
        """0: gateways use the rate only to choose an instance for a prompt."""
        return 0.0

    def waiting(self) -> int:
        """Sequences without blocks."""
        return self.groups.waiting()

    def kv_used(self) -> int:
        """Blocks in use."""
        return self.groups.kv_used()

    def done(self) -> WorkDone:
        """Work done so far."""
        meter = self.meter
        passed_s = self._queue.now - self._at_s if self.step_s else 0.0
        fed = int(passed_s / self.step_s * self.batch * (1 + self._drafts)) if self.step_s else 0
        return WorkDone(meter.busy_s + passed_s, meter.prompt_tokens, meter.forward_tokens + fed, meter.attended_tokens)

    def preemptions(self) -> int:
        """Preemptions so far."""
        return self.groups.preemptions()

    def check(self) -> None:
        """Check that all ledgers balance.

        Raises: LedgerError if they do not.
        """
        for group in self._groups:
            group.seat.engine.check()
        assert sum(self._balance.sequences) == len(self._booked), "bookings and balance disagree"

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _place(self, spec: SequenceSpec) -> InstanceDriver:
        group = self._balance.choose().group
        blocks = -(-(len(spec.prompt) + spec.sampling.max_tokens) // self._block_tokens)
        self._balance.add(group, blocks)
        self._booked[spec.sequence_id] = group, blocks
        return self._groups[group].seat

    def _ended(self, sequence_id: SequenceId) -> None:
        booked = self._booked.pop(sequence_id, None)
        if booked is not None:
            self._balance.remove(*booked)
            self._groups[booked[0]].forget(sequence_id)
            if self.on_empty is not None and not self._booked:
                self.on_empty()

    def _kick(self, seat: InstanceDriver) -> None:
        """End a group's plan at the next boundary, because of an event."""
        if not self.alive or seat.dead:
            return
        group, now = self._groups[seat.die], self._queue.now
        if not self.step_s and now > self._at_s:
            self._at_s = now
        boundary = self._next_boundary()
        if group.running:
            boundary = max(boundary, group.begins + 1)
            if boundary >= group.ends:
                return
        group.ends = boundary
        heappush(self._due, (boundary, seat.die))
        self._schedule()

    def _next_boundary(self) -> int:
        if not self.step_s:
            return self._at_iteration
        return self._at_iteration + max(0, math.ceil((self._queue.now - self._at_s) / self.step_s - _ROUNDING))

    def _last_boundary(self) -> int:
        if not self.step_s:
            return self._at_iteration
        return self._at_iteration + int((self._queue.now - self._at_s) / self.step_s + _ROUNDING)

    def _schedule(self) -> None:
        """Schedule the next boundary at which a group ends its plan or the duration is recomputed."""
        due = self._due[0][0]
        if self._running:
            due = min(due, self._at_iteration + self._refresh)
        when = self._at_s + (due - self._at_iteration) * self.step_s
        if when != self._planned_at:
            self._planned_at = when
            self._version += 1
            self._queue.at(when, self._boundary, (self._version, due))

    def _boundary(self, event: tuple[int, int]) -> None:
        version, iteration = event
        if version != self._version or not self.alive:
            return
        self._planned_at = -1.0
        now, due, groups = self._queue.now, self._due, self._groups
        touched: set[int] = set()
        while due and due[0][0] <= iteration:
            at, die = heappop(due)
            if groups[die].ends == at:
                touched.add(die)
        for die in sorted(touched):
            group = groups[die]
            if group.running:
                self._running -= 1
                self.meter.output_tokens += group.finish(iteration, now)
            if group.begin(iteration, now, self._wake):
                self._running += 1
                self.meter.prompt_tokens += group.chunk_tokens
                self.meter.attended_tokens += group.chunk_attended
                self.meter.forward_tokens += group.chunk_tokens
                heappush(due, (group.ends, die))
            else:
                group.ends = -1
            self.groups.set_load(die, iteration)
        self._retime(iteration, touched)
        if due and (self._running or due[0][0] <= iteration):
            self._schedule()

    def _retime(self, iteration: int, touched: set[int]) -> None:
        """Recompute the duration of the iterations from this one on."""
        self._count(iteration, self._queue.now)
        loads = self.groups
        self.batch = loads.batch
        if not self._running:
            self.step_s = self._work_s = 0.0
            return
        # Contexts grow until the next event; the context in the middle of that stretch is used for all its iterations.
        stretch = min(self._refresh, max(1, self._due[0][0] - iteration)) if self._due else self._refresh
        context = loads.longest_context(iteration + 0.5 * stretch)
        mean = self.batch / len(self._groups)
        base = self._times.decode(float(loads.largest), context, mean, self._step_groups)
        chunk = 0.0
        for die in touched:
            group = self._groups[die]
            if group.chunk_tokens:
                chunk = max(chunk, self._times.chunk_on_decode_die(group.chunk_tokens, group.chunk_attended))
        self._work_s = base * self._slowdown(iteration) + chunk
        still = max(0.0, self._still_until - self._at_s)
        self.step_s = self._work_s + still
        if chunk or still:  # the iterations after this one are as fast as before
            heappush(self._due, (iteration + 1, 0))
        if self.batch > self.meter.peak_batch:
            self.meter.peak_batch = self.batch

    def _count(self, iteration: int, at_s: float) -> None:
        """Add the equally long iterations up to a boundary to the meter, and move the lockstep clock there."""
        if self.step_s:
            passed = iteration - self._at_iteration
            self.meter.steps += passed
            self.meter.busy_s += at_s - self._at_s
            self.meter.forward_tokens += passed * self.batch * (1 + self._drafts)
        self._at_iteration, self._at_s = iteration, at_s

    def _wake(self, seat: InstanceDriver, when: float | None) -> None:
        """Wake an idle group at `when`; events may wake it earlier."""
        if when is not None:
            timer = self._timers.get(seat.die)
            if timer is None:
                timer = self._timers[seat.die] = WakeTimer(self._queue, lambda: self._kick(seat))
            timer.set(when)
