"""One DP group of a decode instance in virtual time: an engine that runs many iterations as one step.

Between two events an engine's plan does not change: each sequence gets its next tokens, iteration by iteration. So one
step covers as many iterations as the plan stays valid, and the engine receives all their tokens in one result. A plan
is valid until a sequence reaches its end or the end of its last KV block, or until an event arrives, which cuts the
step at the next iteration boundary. The seed alone determines which tokens each iteration produces, so a cut does not
change the result.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from serving.ids import SequenceId
from serving.instance.core.dp_balance import DpBalance
from serving.instance.core.events import NextStep, Run, StepDone
from serving.instance.core.placeholder import rate_of, steps_for
from serving.values.step_plan import SequenceResult, StepPlan, StepResult
from serving.virtual.instance_driver import InstanceDriver

_NEXT_STEP = NextStep()
_ZEROS = tuple([0] * 1024)  # written as a product of tuples it would become megabytes of compiled code


class DecodeGroup:
    """An engine and its running plan.

    Attributes:
        begins: first iteration of the running plan.
        ends: iteration at which the plan ends; events can only make it end earlier.
        requests, context, growth: sequences of the plan, their total context at `begins` [tokens], and the growth of
            that context per iteration [tokens].
        chunk_tokens, chunk_attended: prompt tokens that the plan computes (of preempted or resumed sequences), and the
            tokens that they attend to.
    """

    __slots__ = (
        "_at_once",
        "_begun_s",
        "_block_tokens",
        "_drafts",
        "_plan",
        "_progress",
        "_rate",
        "_rates",
        "begins",
        "chunk_attended",
        "chunk_tokens",
        "context",
        "ends",
        "growth",
        "requests",
        "seat",
    )

    def __init__(self, seat: InstanceDriver, drafts: int, rate: float | tuple[float, ...], at_once: int) -> None:
        """
        Args:
            drafts, rate: draft tokens per iteration, and the probability that one is accepted; see `rate_of`.
            at_once: most iterations reported to the engine as one step; 1 gives the same result, slowly.
        """
        self.seat = seat
        self._at_once = at_once
        self._drafts = drafts
        self._rate = rate
        self._block_tokens = seat.engine.settings.block_tokens
        self._rates: dict[SequenceId, tuple[float, int]] = {}
        """Accepted draft tokens per step of each sequence, and the steps that it has done as far as they are known."""
        self._plan: StepPlan | None = None
        self._progress: list[tuple[float, int, int, int]] = []
        """For each sequence of the plan: accepted draft tokens per step, steps and tokens before, most new tokens."""
        self._begun_s = 0.0
        self.begins = 0
        self.ends = 0
        self.requests = 0
        self.context = 0
        self.growth = 0.0
        self.chunk_tokens = 0
        self.chunk_attended = 0.0

    @property
    def running(self) -> bool:
        """Whether a plan is being executed."""
        return self._plan is not None

    def begin(self, iteration: int, now: float, wake: Callable[[InstanceDriver, float | None], None]) -> int:
        """Request the engine's next plan and start it, with the transfers that the engine requests.

        Args:
            wake: called when there is no plan, with the time at which the engine wants to be called again, if any.
        Returns: sequences of the plan, which is its least number of output tokens; 0 if there is none.
        """
        self._plan = None
        self.requests = self.context = self.chunk_tokens = 0
        self.growth = self.chunk_attended = 0.0
        if self._empty():
            return 0
        answer = self.seat.tell(_NEXT_STEP)
        if not isinstance(answer, Run):
            wake(self.seat, answer.at if answer is not None else None)
            return 0
        self._plan = plan = answer.plan
        self.begins, self._begun_s = iteration, now
        self.ends = iteration + max(1, self._look(plan))
        return len(plan.sequences)

    def finish(self, iteration: int, now: float) -> int:
        """End the plan at an iteration, at the latest at `ends`, and pass its tokens to the engine.

        Returns: number of tokens sampled.
        """
        plan = self._plan
        assert plan is not None, "only a running plan can finish"
        self._plan = None
        done, rates = iteration - self.begins, self._rates
        results, sampled = [], 0
        for step, (extra, steps, produced, most) in zip(plan.sequences, self._progress, strict=True):
            name = step.sequence_id
            if step.sample is None:
                results.append(SequenceResult(name))
                continue
            steps += done
            count = steps + int(extra * steps) - produced  # `tokens_after`, inlined
            if count > most:
                count = most
            else:
                rates[name] = extra, steps
            sampled += count
            results.append(SequenceResult(name, _ZEROS[:count] if count <= 1024 else (0,) * count))
        result = StepResult(plan.step, tuple(results), now - self._begun_s)
        self.seat.tell(StepDone(result))
        return sampled

    def _empty(self) -> bool:
        """Whether the engine has no sequences and cannot have blocks to store, so that it needs no call."""
        scheduler, settings = self.seat.engine.scheduler, self.seat.engine.settings
        if scheduler.running.items or scheduler.waiting.items:
            return False
        return not (settings.pool and settings.store_decoded)

    def forget(self, sequence_id: SequenceId) -> None:
        """Forget a sequence that has left."""
        self._rates.pop(sequence_id, None)

    def _look(self, plan: StepPlan) -> int:
        """Start the progress of a plan's sequences. Returns: the steps that all of them can continue."""
        self._progress = progress = []
        rates, drafts, block_tokens = self._rates, self._drafts, self._block_tokens
        fewest, max_len, total, growth = self._at_once, self.seat.engine.max_len, 0, 0.0
        for step in plan.sequences:
            start, order, fed = step.start, step.sample, len(step.tokens)
            total += start + fed
            if order is None or fed > 1:
                self.chunk_tokens += fed
                self.chunk_attended += fed * (start + 0.5 * fed)
                progress.append((0.0, 0, 0, 1))
                fewest = min(fewest, 1)
                continue
            given = len(order.output)
            produced = given - 1 if given else 0
            known = rates.get(step.sequence_id)
            if known is None:
                sampling = order.sampling
                known = rate_of(sampling.seed, sampling.max_tokens, drafts, self._rate), 0
                rates[step.sequence_id] = known
            extra, steps = known
            if steps + int(extra * steps) != produced:  # never in a stream that has only decoded here
                steps = steps_for(produced, extra)
            growth += 1.0 + extra
            room = len(step.block_table) * block_tokens - start
            left = min(order.sampling.max_tokens - given, max_len - start - fed)
            # The engine reserves blocks for all draft tokens before each iteration; the plan ends where it needs a new
            # one.
            most = steps_for(produced + min(left, max(0, room - drafts)), extra) - steps
            progress.append((extra, steps, produced, min(left, room)))
            if most < fewest:
                fewest = most
        self.requests, self.context, self.growth = len(plan.sequences), total, growth
        return fewest


# The DP groups of a decode instance in virtual time: which are open, their sequences, their KV blocks.


class DecodeGroups:
    """The groups of one instance; they grow and shrink in number while it serves.

    Args:
        make: makes the group with a number.
        max_sequences: of one group.
        die_blocks: KV blocks of one group.
    Attributes:
        items: the groups in order; always the same list.
        balance: selects the group of a new sequence.
        batch: sequences that all groups decode.
        largest: sequences of the fullest group.
    """

    def __init__(self, make: Callable[[int], DecodeGroup], groups: int, max_sequences: int, die_blocks: int) -> None:
        self.balance = DpBalance(groups, max_sequences)
        self.items = [make(die) for die in range(groups)]
        self.batch = 0
        self.largest = 0
        self._make = make
        self._die_blocks = die_blocks
        self._preempted = 0
        """Preemptions in removed groups."""
        self._requests = [0] * groups
        self._sizes = Counter({0: groups})
        """Number of groups by number of sequences that they decode."""
        self._base = np.zeros(groups)
        self._growth = np.zeros(groups)
        self._link()

    def _link(self) -> None:
        schedulers = [group.seat.engine.scheduler for group in self.items]
        self._block_pools = [scheduler.blocks.pool for scheduler in schedulers]
        self._queues = [scheduler.waiting.items for scheduler in schedulers]

    # ---- what they decode ------------------------------------------------------------------------------------------

    def set_load(self, die: int, iteration: int) -> None:
        """Update the load of a group that has started its next plan, or has none."""
        group = self.items[die]
        self._growth[die] = group.growth
        self._base[die] = group.context - group.growth * iteration
        before, requests, sizes = self._requests[die], group.requests, self._sizes
        if requests == before:
            return
        self.batch += requests - before
        self._requests[die] = requests
        sizes[before] -= 1
        sizes[requests] += 1
        if requests > self.largest:
            self.largest = requests
        while not sizes[self.largest]:
            self.largest -= 1

    def longest_context(self, iteration: float) -> float:
        """Largest total context of any group at an iteration, or between two [tokens]."""
        contexts = self._growth * iteration
        contexts += self._base
        return float(np.maximum.reduce(contexts))

    # ---- how full they are -----------------------------------------------------------------------------------------

    def free_blocks(self) -> int:
        """KV blocks of open groups that are neither in use nor reserved."""
        return max(0, self.balance.open * self._die_blocks - self.balance.open_blocks)

    def waiting(self) -> int:
        """Sequences without blocks."""
        inside = self.balance.sequences
        return sum([len(queue) for queue, sequences in zip(self._queues, inside, strict=True) if sequences])

    def kv_used(self) -> int:
        """Blocks in use."""
        inside = self.balance.sequences
        free = [pool.num_free for pool, sequences in zip(self._block_pools, inside, strict=True) if sequences]
        return len(free) * self._die_blocks - sum(free)

    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._preempted + sum([group.seat.engine.scheduler.preemptions for group in self.items])

    # ---- more and fewer --------------------------------------------------------------------------------------------

    def move_out(self, first: int = 0) -> None:
        """Hold the sequences of groups from `first` on at the next boundary, until another group or instance pulls
        them.
        """
        for group, sequences in zip(self.items[first:], self.balance.sequences[first:], strict=True):
            if sequences:
                group.seat.move_out()

    def close(self, groups: int) -> None:
        """Keep only the first `groups` groups open; sequences of the others move to those."""
        self.balance.close(groups)
        self.move_out(groups)

    @property
    def closing(self) -> bool:
        """Whether closed groups still have sequences or a running plan."""
        stay = self.balance.open
        return any(self.balance.sequences[stay:]) or any([group.running for group in self.items[stay:]])

    def resize(self, groups: int) -> None:
        """Change the number of groups; all are open afterwards.

        Raises: LedgerError if a group to remove has sequences.
        """
        before = len(self.items)
        more = max(0, groups - before)
        self.balance.resize(groups)
        for group in self.items[groups:]:
            group.seat.dead = True
            self._preempted += group.seat.engine.scheduler.preemptions
        del self.items[groups:]
        self.items += [self._make(die) for die in range(before, groups)]
        self._sizes[0] += groups - before
        self._requests = self._requests[:groups] + [0] * more
        self._base = np.append(self._base[:groups], np.zeros(more))
        self._growth = np.append(self._growth[:groups], np.zeros(more))
        self._link()
