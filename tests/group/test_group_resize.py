"""A group that grows and shrinks between its steps produces the tokens of one process, on every rank."""

from pathlib import Path
from random import Random
from typing import Literal

import pytest

from serving.ids import SequenceId
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import prompts
from tests.group.resized_threads import ResizedThreads
from tests.instance.native_pair import dirty_cache, load_for_native, native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(autouse=True)
def _native() -> None:
    native_or_skip()


def work(name: str, count: int, tokens: int) -> list[SequenceSpec]:
    rng = Random(name)
    params = SamplingParams(temperature=0.0, max_tokens=tokens)
    return [
        SequenceSpec(SequenceId(f"{name}-{number}"), tuple(prompt), params)
        for number, prompt in enumerate(prompts(count, rng))
    ]


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_two_four_two_under_load(dtype: Literal["float32", "bfloat16"], tmp_path: Path) -> None:
    """A fifth process then takes the place of one that has left."""
    group = ResizedThreads(write_random_checkpoint(tmp_path, dtype=dtype), dtype, most=4, seed=1)
    long, brief = [work(f"l{rank}", 3, 150) for rank in range(2)], [work(f"b{rank}", 3, 8) for rank in range(3)]
    group.grow(dict(enumerate(long)))
    group.until(lambda: group.tokens(0) > 30)
    group.grow({2: brief[0], 3: brief[1]})
    group.until(lambda: group.tokens(3) > 6)
    group.shrink((2, 3))
    seen = group.tokens(0)
    assert seen < 450, "it is still at work"
    group.until(lambda: group.tokens(0) > seen + 15)
    group.grow({3: brief[2]})
    group.close()
    found = {name: answer for answers in group.answers for name, answer in answers.items()}
    assert found == group.alone([spec for some in (*long, *brief) for spec in some])


def test_windows_have_room_for_more_ranks_than_there_are(tmp_path: Path) -> None:
    model = load_for_native(write_random_checkpoint(tmp_path), "float32")
    executor = NativeGroupExecutor(model, dirty_cache(model), threads=1, max_rows=8)
    assert executor.group.window_shape(64).ranks == 64
