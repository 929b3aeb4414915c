"""The simulated executor: time from the cost model, tokens from the seed, stamps in the blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.loads import DecodeLoad, PrefillLoad
from serving.ids import BlockId, SequenceId
from serving.instance.core.settings import EngineRole
from serving.instance.executors.simulated_answers import SimulatedAnswers
from serving.instance.executors.simulated_executor import (
    STAMP_BYTES,
    BlockStamps,
    DecodeDies,
    SimulatedExecutor,
    StepTimes,
)
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan

COST = CostModel(load_device("ascend-910c"))
WORDS = tuple(range(100, 600))
BLOCK_TOKENS = 16
REAL_BYTES = 64
MODEL_LEN = 4096


@dataclass
class Pacer:
    """Records the requested waits."""

    waited: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Do nothing."""

    def end(self, duration_s: float) -> None:
        """Do not wait in tests."""
        self.waited.append(duration_s)


@dataclass
class Rig:
    """An executor with all its parts accessible."""

    role: EngineRole = EngineRole.DECODE
    dies: int = 32
    drafts: int = 1

    def __post_init__(self) -> None:
        self.pacer = Pacer()
        self.arena = bytearray(64 * REAL_BYTES)
        self.seats = DecodeDies(self.dies, 64, BLOCK_TOKENS)
        self.executor = SimulatedExecutor(
            StepTimes(COST, self.role, self.dies, self.drafts, prefill_dies=16),
            SimulatedAnswers(WORDS, MODEL_LEN, 50, self.drafts, 0.7),
            self.seats,
            BlockStamps(memoryview(self.arena), REAL_BYTES, BLOCK_TOKENS),
            self.pacer,
            decodes=self.role is not EngineRole.PREFILL,
        )
        self.steps = 0

    def run(self, *sequences: SequenceStep) -> list[tuple[int, ...]]:
        """One step. Returns: each sequence's tokens."""
        self.steps += 1
        result = self.executor.execute(StepPlan(self.steps, sequences))
        assert result.step == self.steps
        assert result.elapsed_s == self.pacer.waited[-1]
        return [one.tokens for one in result.results]


def order(prompt: int, output: Sequence[int] = (), **sampling: object) -> SampleOrder:
    """Sample one more token."""
    params = SamplingParams(**{"max_tokens": 64, "seed": 5, **sampling})  # type: ignore[arg-type]
    return SampleOrder(params, (1,) * prompt, list(output))


def decode(name: str, context: int, sample: SampleOrder, blocks: Sequence[int] = range(64)) -> SequenceStep:
    """A decode step of a sequence with this many tokens in its KV cache."""
    return SequenceStep(SequenceId(name), (7,), context, [BlockId(b) for b in blocks], sample)


def chunk(name: str, start: int, count: int, sample: SampleOrder | None = None) -> SequenceStep:
    """A prompt chunk."""
    return SequenceStep(SequenceId(name), (7,) * count, start, [BlockId(b) for b in range(64)], sample)


def answer_of(rig: Rig, sample: SampleOrder) -> list[int]:
    """A whole response: first token, then decode steps until its length or its end token."""
    output: list[int] = list(sample.output)
    sampling = sample.sampling
    while len(output) < sampling.max_tokens:
        now = SampleOrder(sampling, sample.prompt, output)
        context = len(sample.prompt) + len(output) - 1
        step = decode("a", context, now) if output else chunk("a", 0, len(sample.prompt), now)
        (tokens,) = rig.run(step)
        output += tokens
        if output[-1] in sampling.stop_token_ids:
            break
    return output


def test_a_prefill_step_takes_what_the_cost_model_says() -> None:
    rig = Rig(EngineRole.PREFILL)
    (first, last) = rig.run(chunk("a", 0, 500), chunk("b", 100, 300, order(400)))
    expected = COST.prefill_step_s(PrefillLoad(800, 500 * 250 + 300 * 250, 32))
    assert rig.pacer.waited == [expected]
    assert first == ()
    assert len(last) == 1


def test_one_token_of_a_prompt_is_no_decode_step_on_a_prefill_instance() -> None:
    rig = Rig(EngineRole.PREFILL)
    rig.run(chunk("a", 99, 1, order(100, [3])))
    assert rig.pacer.waited == [COST.prefill_step_s(PrefillLoad(1, 99.5, 32))]


def test_the_fullest_die_decides_how_long_a_decode_step_takes() -> None:
    rig = Rig(dies=2)
    rig.run(*(decode(f"s{n}", tokens, order(tokens, [3])) for n, tokens in enumerate((1000, 100, 120))))
    # 1000 alone on its die; the two short ones share the other.
    assert rig.pacer.waited == [COST.decode_step_s(DecodeLoad(2, 1001, 1.5, 2, 1))]


def test_a_resumed_prompt_on_a_decode_instance_is_computed_by_one_die_after_the_decodes() -> None:
    rig = Rig()
    rig.run(decode("a", 50, order(8, [3])), chunk("b", 0, 40, order(40, [3, 4])))
    alone = COST.decode_step_s(DecodeLoad(1, 51, 1 / 32, 32, 1))
    assert rig.pacer.waited == [alone + COST.prefill_step_s(PrefillLoad(16 * 40, 16 * 800, 16))]


def test_jitter_multiplies_the_steps_duration() -> None:
    times = StepTimes(COST, EngineRole.DECODE, 32, 1, prefill_dies=32, slowdown=lambda step: 1.0 + step)
    seats = DecodeDies(32, 64, BLOCK_TOKENS)
    seats.begin()
    idle = seats.end()
    plain = StepTimes(COST, EngineRole.DECODE, 32, 1, prefill_dies=32).step_s(3, idle, 100, 5000.0)
    assert times.step_s(3, idle, 100, 5000.0) == 4.0 * plain > 0


def test_sequences_that_are_gone_leave_their_dies() -> None:
    rig = Rig(dies=2)
    rig.run(*(decode(f"s{n}", 1000, order(8, [3])) for n in range(6)))
    assert len(rig.seats) == 6
    rig.run(decode("s0", 1000, order(8, [3])))
    assert len(rig.seats) == 1
    rig.run()
    assert len(rig.seats) == 0


def test_an_answer_has_the_length_that_was_asked_for_and_no_end_token() -> None:
    answer = answer_of(Rig(), order(20, max_tokens=40, stop_token_ids=(2,)))
    assert len(answer) == 40
    assert set(answer) <= set(WORDS)


def test_an_answer_without_limit_ends_with_the_end_token_about_where_the_mean_says() -> None:
    lengths = []
    for seed in range(60):
        prompt = 20
        answer = answer_of(
            Rig(dies=1), order(prompt, seed=seed * 7919, max_tokens=MODEL_LEN - prompt, stop_token_ids=(2,))
        )
        assert answer[-1] == 2
        assert 2 not in answer[:-1]
        lengths.append(len(answer))
    assert 40 < sum(lengths) / len(lengths) < 60


def test_an_answer_that_ignores_the_end_fills_the_context() -> None:
    assert len(answer_of(Rig(dies=1), order(4000, max_tokens=96))) == 96


@given(seed=st.integers(0, 2**63), limit=st.integers(1, 60), moved_at=st.integers(1, 59), drafts=st.integers(0, 3))
def test_an_answer_is_the_same_wherever_it_is_resumed(seed: int, limit: int, moved_at: int, drafts: int) -> None:
    sample = order(10, seed=seed, max_tokens=limit)
    whole = answer_of(Rig(dies=1, drafts=drafts), sample)
    assert len(whole) == limit
    begun = whole[: min(moved_at, limit - 1)]
    assert answer_of(Rig(dies=4, drafts=drafts), order(10, begun, seed=seed, max_tokens=limit)) == whole


def test_drafts_are_accepted_as_often_as_the_rate_says() -> None:
    rig = Rig(dies=1, drafts=1)
    answer = answer_of(rig, order(10, max_tokens=1000))
    assert len(answer) == 1000
    assert rig.steps == pytest.approx(999 / 1.7, rel=0.05)
    rig = Rig(dies=1, drafts=0)
    answer_of(rig, order(10, max_tokens=100))
    assert rig.steps == 100


def test_a_block_is_stamped_once_by_whoever_begins_it() -> None:
    rig = Rig(EngineRole.AGGREGATED)
    rig.run(chunk("a", 0, 40, order(40)))
    stamps = [bytes(rig.arena[b * REAL_BYTES :][:STAMP_BYTES]) for b in range(4)]
    assert len(set(stamps[:3])) == 3
    assert stamps[3] == bytes(STAMP_BYTES)
    rig.run(decode("a", 46, order(40, [3])))
    assert bytes(rig.arena[2 * REAL_BYTES :][:STAMP_BYTES]) == stamps[2]
    rig.run(decode("a", 48, order(40, [3])))
    assert bytes(rig.arena[3 * REAL_BYTES :][:STAMP_BYTES]) != bytes(STAMP_BYTES)


def test_a_draft_beyond_the_last_block_stamps_nothing() -> None:
    rig = Rig(drafts=3)
    rig.run(decode("a", 15, order(8, [3]), blocks=[0]))
    assert bytes(rig.arena[REAL_BYTES:]) == bytes(63 * REAL_BYTES)


def test_log_probabilities_are_there_for_who_asks() -> None:
    rig = Rig(EngineRole.PREFILL)
    asking = SequenceStep(SequenceId("a"), (7, 8, 9), 0, [BlockId(0)], order(3, logprobs=2), prompt_logprobs=1)
    (result,) = rig.executor.execute(StepPlan(1, (asking,))).results
    assert [one.token for one in result.logprobs] == list(result.tokens)
    assert [one.token for one in result.prompt_logprobs] == [8, 9]


def test_a_greedy_answer_follows_from_the_prompt_alone() -> None:
    answers = SimulatedAnswers(WORDS, MODEL_LEN, 50, 1, 0.7)

    def said(prompt: tuple[int, ...], seed: int, temperature: float) -> tuple[int, tuple[int, ...]]:
        sampling = SamplingParams(
            max_tokens=MODEL_LEN - len(prompt), temperature=temperature, seed=seed, stop_token_ids=(1,)
        )
        order = SampleOrder(sampling, prompt, ())
        answer = answers.answer(order)
        return answer.limit, answers.tokens(answer, order, 20)

    assert said((1, 2, 3), 5, 0.0) == said((1, 2, 3), 6, 0.0)
    assert said((1, 2, 3), 5, 0.0) != said((1, 2, 4), 5, 0.0)
    assert said((1, 2, 3), 5, 1.0) != said((1, 2, 3), 6, 1.0)
