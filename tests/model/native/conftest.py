"""The kernels of every instruction set that this machine has."""

import ctypes
from collections.abc import Callable
from functools import cache

import pytest

from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.native import build
from tests.cases.nightly import mostly_nightly
from tests.model.native.kernels import chosen_sets, compile_kernels, instruction_sets
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session")
def kernels_of(pytestconfig: pytest.Config) -> Callable[[str], ctypes.CDLL]:
    """Factory by name; compiled for these sources if they were not before, which takes longer than all the tests."""
    try:
        build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    folder = pytestconfig.cache.mkdir("native-kernels")
    return cache(lambda name: compile_kernels(name, folder))


SETS = instruction_sets()
SAME_AS = "tests/model/native/test_attention.py::test_any_sizes"


@pytest.fixture(params=mostly_nightly(SETS, chosen_sets(SETS), SAME_AS))
def kernels(request: pytest.FixtureRequest, kernels_of: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """Kernels of one instruction set."""
    return kernels_of(request.param)


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    """Configuration of the tests' random checkpoints."""
    return read_architecture(write_random_checkpoint(tmp_path_factory.mktemp("tiny")))
