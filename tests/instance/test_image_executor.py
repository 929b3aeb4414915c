"""A native executor on an image, without torch's model: the same bits as with it."""

import math
from pathlib import Path

import pytest
import torch

from serving.errors import ModelError
from serving.instance.executors.native_executor import NativeExecutor
from serving.model.image import Image
from serving.model.kv_arena import KvArena
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model
from serving.model.native.image_model import ImageModel
from serving.model.native.library import load
from serving.values.step_plan import StepPlan
from tests.cases.nightly import mostly_nightly
from tests.instance.native_pair import BLOCK_TOKENS, HAND_OUT, MAX_ROWS, Feeder, logits_of, native_or_skip, prompt
from tests.model.families.checkpoints import CASES, ONE_OF_EACH, write_family
from tests.model.image_shelf import ImageShelf
from tests.model.random_checkpoint import write_random_checkpoint

BLOCKS = 64
HERE = "tests/instance/test_image_executor.py::"


def pair(folder: Path, dtype: DtypeName = "float32", *, coarse: bool = False) -> tuple[NativeExecutor, NativeExecutor]:
    """An executor on the image of a checkpoint, and one with the model in torch."""
    native_or_skip()
    library, shelf = load(), ImageShelf()
    assert library is not None
    model = load_model(folder, dtype=dtype, native=True, images=shelf, coarse_drafts=coarse)
    name = str(model.dtype).removeprefix("torch.")
    on_image = ImageModel(library, Image(shelf.only.data), model.config, name)
    layers = len(model.config.layers) + bool(model.mtp)
    cache = KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=layers)
    memory = memoryview(bytearray(cache.size_bytes))
    arena = KvArena(model.config, BLOCKS, BLOCK_TOKENS, name, memory, num_layers=layers)
    assert arena.layout_fingerprint == cache.layout_fingerprint
    assert on_image.drafts == bool(model.mtp)
    return (
        NativeExecutor(on_image, arena, threads=1, max_rows=MAX_ROWS),
        NativeExecutor(model, cache, threads=1, max_rows=MAX_ROWS),
    )


@pytest.mark.parametrize("case", mostly_nightly(CASES, ONE_OF_EACH, HERE + "test_families"))
def test_families(tmp_path: Path, case: str) -> None:
    write_family(tmp_path, case)
    ours, theirs = pair(tmp_path)
    feeder = Feeder(0, prompt(30), HAND_OUT)
    for size in (17, 12, 1):
        step = feeder.step(size)
        found, wanted = logits_of(ours, [step]), logits_of(theirs, [step])
        assert torch.equal(found, wanted)
        feeder.fed += size
    assert bool(found.isfinite().all())


@pytest.mark.parametrize(("dtype", "coarse"), [("float32", False), ("bfloat16", True)])
def test_draft_layers_and_prompt_logprobs(tmp_path: Path, dtype: DtypeName, coarse: bool) -> None:
    folder = write_random_checkpoint(tmp_path)
    ours, theirs = pair(folder, dtype, coarse=coarse)
    plain = load_model(folder, dtype=dtype)
    feeder = Feeder(0, prompt(20))
    step = feeder.step(None, next_drafts=3, prompt_logprobs=2)
    found, wanted = (one.execute(StepPlan(0, (step,))).results[0] for one in (ours, theirs))
    assert found == wanted
    assert len(found.drafts) == 3
    assert len(found.prompt_logprobs) == 19
    assert plain.mtp
    for entry in found.prompt_logprobs:
        assert -20 < entry.logprob < 0
        assert math.exp(entry.top[0][1]) + math.exp(entry.top[1][1]) <= 1.001
    feeder.take(step, found)


def test_an_image_of_another_model_is_refused(tmp_path: Path) -> None:
    native_or_skip()
    library, shelf = load(), ImageShelf()
    assert library is not None
    model = load_model(write_random_checkpoint(tmp_path), dtype="float32", native=True, images=shelf)
    with pytest.raises(ModelError, match="another configuration or dtype"):
        ImageModel(library, Image(shelf.only.data), model.config, "bfloat16")
