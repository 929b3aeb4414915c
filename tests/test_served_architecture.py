"""The served form of a model with sparse attention."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.engine import EngineConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.config.simulation import Executor
from serving.model.config import read_architecture
from serving.model.dense_form import served_architecture, without_indexers
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import SHARED_CHOICE, SPARSE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("sparse"), **SPARSE)


def config_of(folder: Path, executor: Executor, asked: int) -> ServeConfig:
    return ServeConfig(ModelConfig(path=folder), engine=EngineConfig(executor=executor, max_model_len=asked))


@pytest.mark.parametrize(
    ("executor", "asked", "chooses"),
    [
        ("auto", 0, True),
        ("auto", 65, True),
        ("auto", 64, False),
        ("torch", 0, True),
        ("torch", 20, False),
        ("native", 0, False),
        ("native", 65, False),
        ("simulated", 0, True),
        ("simulated", 20, True),
    ],
)
def test_indexers_are_served_where_they_may_choose_and_torch_computes(
    folder: Path, executor: Executor, asked: int, chooses: bool
) -> None:
    found = served_architecture(config_of(folder, executor, asked))
    assert (found.indexer is not None) == chooses
    assert found.max_position_embeddings == (1024 if chooses else 64)
    assert (found.computed_up_to is not None) == (executor == "native")


def test_ranks_need_the_native_step_which_knows_no_indexers(folder: Path) -> None:
    config = config_of(folder, "auto", 0)
    for name in ("aggregated", "decode"):
        mode = "aggregated" if name == "aggregated" else "disaggregated"
        pool = replace(getattr(config, name), ep=2)
        ranks = replace(config, serving=replace(config.serving, mode=mode), **{name: pool})  # type: ignore[arg-type]
        assert served_architecture(ranks).indexer is None


def test_all_layers_lose_their_indexers_and_others_nothing(tmp_path: Path) -> None:
    model = read_architecture(write_random_checkpoint(tmp_path / "shared", **SHARED_CHOICE))
    plain = without_indexers(model)
    assert (plain.row.elements, model.row.elements) == (40, 56)
    assert all(layer.attention.row == plain.row for layer in plain.layers + plain.drafts)
    assert without_indexers(plain) == plain
    other = read_architecture(write_random_checkpoint(tmp_path / "other"))
    assert without_indexers(other) is other
