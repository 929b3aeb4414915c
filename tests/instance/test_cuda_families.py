"""Every family on a CUDA device: the tokens equal the CPU's, for every path of a sequence."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serving.instance.core.settings import EngineSettings
from serving.model.kv_shape import split_layers
from serving.model.loader import load_model
from tests.instance.family_sequences import MANY, SETTINGS, specs
from tests.instance.torch_pair import run_alone, run_pair
from tests.model.families.checkpoints import CASES, CHOOSING_CASES, write_family

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("case", [*CASES, *CHOOSING_CASES])
def test_tokens_are_those_of_the_cpu(tmp_path: Path, case: str) -> None:
    write_family(tmp_path, case)
    cpu, cuda = (load_model(tmp_path, device=device, dtype="float32") for device in ("cpu", "cuda"))
    split = split_layers(cpu.config)
    settings: EngineSettings = SETTINGS if split is None else replace(SETTINGS, split=split.split)
    wanted = run_alone(cpu, settings, MANY, specs())
    assert wanted.prefix_hits > 0
    assert run_alone(cuda, settings, MANY, specs()).output == wanted.output
    assert run_pair(cuda, settings, MANY, specs()).output == wanted.output
