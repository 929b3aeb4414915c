"""Random models to quantise; no test may change them."""

from pathlib import Path

import pytest

from serving.tools.quantize.quantize_report import QuantizationReport
from serving.tools.quantize.quantize_run import quantise
from serving.tools.quantize.quantize_settings import Settings
from tests.model.random_checkpoint import write_random_checkpoint

TOKENS = 512
"""Of random calibration text: eight windows."""


def silent(what: str, done: int, of: int) -> None:
    """Print nothing."""


def quick(model: Path, out: Path, settings: Settings | None = None) -> QuantizationReport:
    """Quantise with few random tokens."""
    return quantise(model, out, [], settings or Settings(tokens=TOKENS, window=64, trials=False), silent)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float32, V3, with a draft layer that shares the model's head."""
    return write_random_checkpoint(tmp_path_factory.mktemp("quantize") / "original")


@pytest.fixture(scope="session")
def quantised(original: Path) -> Path:
    """The original in INT8, all steps, no trials."""
    quick(original, original.parent / "int8")
    return original.parent / "int8"
