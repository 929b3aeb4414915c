"""Random requests for a pair of engines, and the expected result of each."""

from dataclasses import replace
from random import Random

from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.fakes.executor import STOP_TOKEN, VOCAB, reference_output
from tests.instance.cluster import Record

SMALL = EngineSettings(
    block_tokens=4, max_step_tokens=24, max_sequences=8, max_waiting=10_000, max_model_len=96, watermark_blocks=1
)


def pools(prefill: int = 1, decode: int = 1, base: EngineSettings = SMALL) -> dict[str, EngineSettings]:
    named = {f"prefill#{i}": replace(base, role=EngineRole.PREFILL) for i in range(prefill)}
    return named | {f"decode#{i}": replace(base, role=EngineRole.DECODE) for i in range(decode)}


def random_spec(rng: Random, name: str, stems: list[tuple[int, ...]], **sampling: object) -> SequenceSpec:
    prompt = rng.choice(stems)[: rng.randrange(0, 40)] + tuple(
        rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))
    )
    values: dict[str, object] = {
        "max_tokens": rng.randrange(1, 24),
        "min_tokens": rng.randrange(0, 3),
        "seed": rng.randrange(3),
        "stop_token_ids": (STOP_TOKEN,),
    }
    return SequenceSpec(SequenceId(name), prompt, SamplingParams(**(values | sampling)))  # type: ignore[arg-type]


def stems(rng: Random) -> list[tuple[int, ...]]:
    return [tuple(rng.randrange(VOCAB) for _ in range(40)) for _ in range(3)]


def assert_exact(record: Record, max_len: int = SMALL.max_model_len) -> None:
    expected, reason = reference_output(record.spec, max_len)
    assert record.failure is None
    assert record.output == expected
    assert record.delivered[-1].finish_reason is reason
    assert [d.finish_reason for d in record.delivered[:-1]] == [None] * (len(record.delivered) - 1)
    assert record.delivered[0].cached_tokens is not None
    assert all(d.cached_tokens is None for d in record.delivered[1:])
