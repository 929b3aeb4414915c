"""Contents of a step, their order, and the sequences that are preempted."""

import math

import pytest

from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.scheduler import PlannedStep, Scheduler, SchedulerLimits
from serving.instance.core.sequence import LiveSequence, PhaseEvent, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec

TICKET = HandoffTicket(
    "t", ReplicaId("p"), NodeId("n"), "/s", "l", 4, (BlockExtent(0, 0, 4, BlockHash(b"h" * 16)),)
)  # fmt: skip


class Bench:
    """A scheduler whose steps 'execute' by sampling one token 1 per sequence."""

    def __init__(self, blocks: int = 64, tokens: int = 8, seats: int = 8, watermark: int = 0) -> None:
        table = SequenceBlocks(BlockPool(blocks), 4, prefix_reuse=False, cache_decoded=False)
        self.scheduler = Scheduler(SchedulerLimits(tokens, seats, watermark), table)
        self.sequences: dict[str, LiveSequence] = {}
        self.steps = 0

    def add(self, name: str, prompt: int, priority: int = 0, ticket: HandoffTicket | None = None) -> LiveSequence:
        output = (1,) if ticket else ()
        spec = SequenceSpec(SequenceId(name), (1,) * prompt, SamplingParams(max_tokens=99), output, priority=priority)
        sequence = LiveSequence(spec, (0.0, len(self.sequences)), 0.0, ticket)
        self.sequences[name] = sequence
        self.scheduler.waiting.add(sequence)
        return sequence

    def step(self) -> list[tuple[str, int, bool]]:
        """Name, fed tokens and whether it samples, for each part of the step."""
        planned: PlannedStep | None = self.scheduler.plan_step(self.steps, float(self.steps))
        self.steps += 1
        self.scheduler.blocks.pool.check(s.blocks for s in self.sequences.values())
        if planned is None:
            return []
        for sequence, share in zip(planned.sequences, planned.plan.sequences, strict=True):
            assert sequence.in_flight
            assert share.start == sequence.num_computed
            prompt = len(sequence.spec.prompt)
            assert share.alone == (share.start >= prompt)
            assert share.alone or share.start + len(share.tokens) <= prompt, "never both at once"
            sequence.in_flight = False
            sequence.num_computed += len(share.tokens)
            if share.sample is not None:
                sequence.append((1,))
                if sequence.phase is SequencePhase.PREFILLING:
                    sequence.advance(PhaseEvent.PROMPT_DONE)
        return [(s.sequence_id, len(s.tokens), s.sample is not None) for s in planned.plan.sequences]


def test_a_prompt_is_cut_to_the_budget() -> None:
    bench = Bench(tokens=8)
    bench.add("a", 19)
    assert [bench.step() for _ in range(4)] == [
        [("a", 8, False)],
        [("a", 8, False)],
        [("a", 3, True)],
        [("a", 1, True)],
    ]


def test_decodes_come_first_and_prompts_share_the_rest() -> None:
    bench = Bench(tokens=8)
    bench.add("a", 2)
    bench.step()
    bench.add("b", 10)
    bench.add("c", 3)
    assert bench.step() == [("a", 1, True), ("b", 7, False)]
    assert bench.step() == [("a", 1, True), ("b", 3, True), ("c", 3, True)]
    assert bench.step() == [("a", 1, True), ("b", 1, True), ("c", 1, True)]


def test_seats_bound_the_batch() -> None:
    bench = Bench(seats=2)
    for name in "abc":
        bench.add(name, 2)
    assert bench.step() == [("a", 2, True), ("b", 2, True)]
    bench.scheduler.running.remove(bench.sequences["a"])
    bench.scheduler.blocks.free(bench.sequences["a"])
    assert bench.step() == [("b", 1, True), ("c", 2, True)]


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    bench = Bench(blocks=4)
    bench.add("a", 8)
    bench.step()
    bench.add("big", 12)
    bench.add("small", 1)
    assert bench.step() == [("a", 1, True)]
    assert len(bench.scheduler.waiting) == 2


def test_the_watermark_is_kept_for_the_batch_and_waived_without_one() -> None:
    bench = Bench(blocks=4, watermark=3, tokens=32)
    bench.add("a", 8)
    bench.add("b", 4)
    assert bench.step() == [("a", 8, True)]
    assert bench.step() == [("a", 1, True)]  # it took a third block; one is free, three should stay free
    assert bench.sequences["b"].phase is SequencePhase.WAITING


def test_the_latest_gives_way_and_starts_over() -> None:
    bench = Bench(blocks=4, tokens=32)
    first, second = bench.add("a", 7), bench.add("b", 7)
    assert bench.step() == [("a", 7, True), ("b", 7, True)]
    assert bench.step() == [("a", 1, True), ("b", 1, True)]
    assert bench.step() == [("a", 1, True)]  # both need a third block: b releases two
    assert (second.phase, second.blocks, second.num_computed) == (SequencePhase.WAITING, [], 0)
    assert second.output == [1, 1]
    assert bench.scheduler.preemptions == 1
    bench.scheduler.running.remove(first)
    bench.scheduler.blocks.free(first)
    assert bench.step() == [("b", 7, False)]  # prompt and output again,
    assert bench.step() == [("b", 2, True)]  # each as it was computed before
    assert second.output == [1, 1, 1]


def test_the_least_important_gives_way_even_to_itself() -> None:
    bench = Bench(blocks=4, tokens=32)
    bench.add("low", 7, priority=1)
    bench.add("high", 8, priority=0)
    assert bench.step() == [("high", 8, True), ("low", 7, True)]
    assert bench.step() == [("high", 1, True)]
    assert bench.sequences["low"].phase is SequencePhase.WAITING
    bench = Bench(blocks=4, tokens=32)
    bench.add("a", 7)
    bench.add("b", 8)
    bench.step()
    assert bench.step() == [("a", 1, True)]
    assert bench.sequences["b"].phase is SequencePhase.WAITING


def test_a_stream_that_was_held_here_goes_by_its_priority_once_it_is_in_the_batch() -> None:
    bench = Bench(blocks=4, tokens=32)
    held = LiveSequence(
        SequenceSpec(SequenceId("held"), (1,) * 4, SamplingParams(max_tokens=99), (1,), priority=1),
        (-math.inf, 0),
        0.0,
        TICKET,
    )
    bench.sequences["held"] = held
    bench.scheduler.waiting.add(held)
    bench.add("high", 7, priority=0)
    assert bench.scheduler.start_pulls() == [held], "whatever waits may need its blocks"
    held.num_computed = 4
    bench.scheduler.join(held)
    assert bench.step() == [("held", 1, True), ("high", 7, True)]
    assert bench.step() == [("high", 1, True), ("held", 1, True)]
    while held.phase is SequencePhase.DECODING:
        bench.step()
    assert bench.sequences["high"].phase is SequencePhase.DECODING


def test_a_victim_does_not_come_straight_back() -> None:
    bench = Bench(blocks=7, tokens=64)
    bench.add("a", 12)
    bench.add("b", 13)
    assert len(bench.step()) == 2
    bench.add("tiny", 1)
    for _ in range(3):
        bench.step()
    assert bench.scheduler.preemptions == 1
    assert bench.sequences["tiny"].phase is SequencePhase.WAITING


def test_pulls_and_prompts_leave_the_queue_in_one_order() -> None:
    bench = Bench(blocks=4, tokens=32, seats=3)
    bench.add("handoff", 4, ticket=TICKET)
    bench.add("prompt", 4)
    bench.add("later", 4, ticket=TICKET)
    assert [s.sequence_id for s in bench.scheduler.start_pulls()] == ["handoff"]
    assert bench.step() == [("prompt", 4, True)]
    assert bench.scheduler.start_pulls() == []  # one block free, two needed: held back
    assert bench.sequences["later"].phase is SequencePhase.ADOPTING


def test_a_handoff_that_covers_a_part_is_caught_up() -> None:
    bench = Bench()
    handoff = bench.add("handoff", 7, ticket=TICKET)
    bench.scheduler.start_pulls()
    handoff.num_computed = 4
    bench.scheduler.join(handoff)
    assert handoff.phase is SequencePhase.PREFILLING
    assert bench.step() == [("handoff", 3, False)], "the rest of the prompt"
    assert bench.step() == [("handoff", 1, True)]


@pytest.mark.parametrize(
    ("tokens", "shares"),
    [
        (4, [(0, 2, 5, False), (4, 2, None, False), (6, None, None, True)]),
        (6, [(0, 2, None, False), (6, None, None, True)]),  # the token after the chunk is no prompt token
    ],
)
def test_prompt_logprob_orders_end_with_the_prompt(
    tokens: int, shares: list[tuple[int, int | None, int | None, bool]]
) -> None:
    bench = Bench(tokens=tokens)
    sampling = SamplingParams(prompt_logprobs=2)
    spec = SequenceSpec(SequenceId("a"), (1, 2, 3, 4, 5, 6), sampling, output=(7, 8, 9, 10))
    bench.scheduler.waiting.add(LiveSequence(spec, (0.0, 0), 0.0))
    seen = []
    for step in range(len(shares)):
        planned = bench.scheduler.plan_step(step, 0.0)
        assert planned is not None
        (share,) = planned.plan.sequences
        seen.append((share.start, share.prompt_logprobs, share.next_prompt_token, share.sample is not None))
        planned.sequences[0].num_computed += len(share.tokens)
    assert seen == shares
