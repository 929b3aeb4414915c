"""Models with a sliding window whose blocks are freed while sequences run: the tokens equal those with all blocks.

Tested with chunks, preemption, cached prefixes, and a handoff.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from serving.errors import EngineError
from serving.ids import BlockId, SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.config import read_architecture
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import split_layers
from serving.model.loader import load_model
from serving.model.model import Model
from serving.values.layer_split import GONE, LayerSplit
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.values.step_plan import SequenceStep, StepPlan
from tests.cases.nightly import mostly_nightly
from tests.instance.family_sequences import MANY, SETTINGS, specs
from tests.instance.native_pair import native_or_skip
from tests.instance.torch_pair import MakeExecutor, prompt, run_alone, run_pair
from tests.model.families.checkpoints import write_family

CASES = ("gpt_oss", "gpt_oss one of three windowed", "mistral beyond its window")
KINDS = ("torch", "native")


def loaded(folder: Path, case: str, kind: str) -> tuple[Model, EngineSettings, MakeExecutor]:
    """A case's model, settings with its split, and its executor class."""
    if kind == "native":
        native_or_skip()
    write_family(folder, case)
    model = load_model(folder, dtype="float32", native=kind == "native")
    split = split_layers(model.config)
    assert split is not None
    make: MakeExecutor = TorchExecutor if kind == "torch" else partial(NativeExecutor, threads=2, max_rows=64)
    return model, replace(SETTINGS, split=split.split), make


WAYS = [(case, kind) for case in CASES for kind in KINDS]
WAYS_AS = "tests/instance/test_windowed_models.py::test_tokens_are_those_of_blocks_that_stay"


@pytest.mark.usefixtures("every_guess")
@pytest.mark.parametrize(("case", "kind"), mostly_nightly(WAYS, WAYS[::4], WAYS_AS))
def test_tokens_are_those_of_blocks_that_stay(tmp_path: Path, case: str, kind: str) -> None:
    model, settings, make = loaded(tmp_path, case, kind)
    wanted = run_alone(model, replace(settings, split=None), MANY, specs(), make)
    assert wanted.prefix_hits > 0
    found = run_alone(model, settings, MANY, specs(), make)
    assert found.output == wanted.output
    assert found.prefix_hits == wanted.prefix_hits
    assert found.most_blocks < wanted.most_blocks
    assert run_pair(model, settings, MANY, specs(), make).output == wanted.output
    assert settings.split is not None
    tight = settings.split.full * 52 + settings.split.sliding * 11
    scarce = run_alone(model, settings, tight, specs(), make)
    assert (
        scarce.preemptions > 0 or not settings.split.full
    )  # with windows only, an admitted sequence always has its blocks
    assert scarce.output == wanted.output
    drafting = run_alone(model, replace(settings, lookup_tokens=4), tight, specs(), make)
    assert len(drafting.uses) > 20
    assert drafting.output == wanted.output


@pytest.mark.parametrize("case", CASES)
def test_no_bit_of_a_freed_block_matters(tmp_path: Path, case: str) -> None:
    model, settings, make = loaded(tmp_path, case, "native")

    def spoiled(model: Model, cache: KvCache) -> NativeExecutor:
        cache.tensor.fill_(torch.nan)
        return NativeExecutor(model, cache, threads=2, max_rows=64)

    wanted = run_alone(model, replace(settings, split=None), MANY, specs(3), make)
    assert run_alone(model, settings, MANY, specs(3), spoiled).output == wanted.output


def test_a_model_of_windows_only_keeps_its_window(tmp_path: Path) -> None:
    """A sequence may be longer than the whole arena."""
    model, settings, make = loaded(tmp_path, "mistral beyond its window", "torch")
    settings = replace(settings, max_model_len=400)
    one = [SequenceSpec(SequenceId("a"), tuple(prompt(200, 5)), SamplingParams(temperature=0, max_tokens=60))]
    wanted = run_alone(model, replace(settings, split=None), MANY, one, make)
    found = run_alone(model, settings, 12, one, make)
    assert found.output == wanted.output
    assert len(found.output["a"]) == 60


@pytest.mark.parametrize(("gone", "fits"), [(5, True), (7, False), (6, False), (4, False)])
def test_entries_that_a_step_sees_must_be_there(tmp_path: Path, gone: int, fits: bool) -> None:
    """Entries of a row are a full block and a sliding one; a token at position 20 sees rows 3 to 5 of the latter."""
    model, _, _ = loaded(tmp_path, "gpt_oss", "native")
    cache = KvCache(model.config, 12, 4, model.dtype, split=split_layers(model.config))
    executor = NativeExecutor(model, cache, threads=1, max_rows=8)
    table = [BlockId(block) for block in range(12)]
    table[gone] = GONE
    step = SequenceStep(SequenceId("a"), [7], 20, table, None, alone=True)
    if fits:
        executor.execute(StepPlan(0, (step,)))
    else:
        with pytest.raises(EngineError, match="block -1 of a cache of 12"):
            executor.execute(StepPlan(0, (step,)))


def test_layers_are_split_where_a_window_lets_go(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt_oss one of three windowed")
    config = read_architecture(tmp_path)
    found = split_layers(config)
    assert found is not None
    assert found.split == LayerSplit(full=3, sliding=1, window=9)
    assert (found.layers, found.places) == (1, ((0, 0), (1, 0), (3, 0), (2, 0)))
    halves = replace(config, layers=config.layers[1:3] * 12)
    found = split_layers(halves)
    assert found is not None
    assert (found.split, found.layers) == (LayerSplit(full=1, sliding=1, window=9), 12)
    assert found.places[:4] == ((0, 0), (1, 0), (0, 1), (1, 1))
    assert split_layers(replace(config, max_position_embeddings=9)) is None
    assert split_layers(replace(config, layers=config.layers[:2])) is None
    assert split_layers(replace(config, layers=config.layers * 3)) is not None
    assert split_layers(replace(config, layers=(*halves.layers, config.layers[0]))) is None
    whole, split = (KvCache(halves, 4, 4, torch.float32, split=split) for split in (None, found))
    assert whole.block_bytes == 2 * split.block_bytes
    assert whole.layout_fingerprint != split.layout_fingerprint
