"""Kinds of engine pools are data: few files name one kind, and the table has what the configuration starts."""

import re
from pathlib import Path
from typing import get_args

from serving.config.engine import PoolConfig, ServingMode
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.instance.core.settings import EngineRole
from serving.values.pool_kinds import ENGINE_POOLS, POOL_KINDS, kinds_of
from tests.architecture.source_tree import ROOT

MOST_FILES = 30


def test_few_product_files_name_one_kind() -> None:
    """Counted by the name of the kind that does both, as a word: the other two are also names of phases."""
    files = [
        path
        for folder in ("serving", "hardware", "loadgen", "deploy", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".js", ".html"} and re.search(r"(?i)\baggregated\b", path.read_text(encoding="utf-8"))
    ]
    assert len(files) <= MOST_FILES, sorted(str(path.relative_to(ROOT)) for path in files)


def test_each_kind_has_a_section_a_role_and_a_mode() -> None:
    config = ServeConfig(ModelConfig(Path("model")))
    assert all(isinstance(getattr(config, pool), PoolConfig) for pool in ENGINE_POOLS)
    assert {role.value for role in EngineRole} == set(ENGINE_POOLS)
    assert {kind.mode for kind in POOL_KINDS.values()} == set(get_args(ServingMode))


def test_each_mode_prefills_and_decodes_in_one_pool_each() -> None:
    for mode in get_args(ServingMode):
        assert sum(kind.prefills for kind in kinds_of(mode)) == sum(kind.decodes for kind in kinds_of(mode)) == 1
