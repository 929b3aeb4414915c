"""Acceptance of draft tokens by position: the same in the cost model, in virtual time and in simulated outputs."""

import math
from pathlib import Path
from typing import Any

import pytest

from hardware.cost import mtp_tokens_per_step
from hardware.errors import SpecError
from serving.config.load import load_config
from serving.config.simulation import SimulationConfig
from serving.config.write import config_text
from serving.errors import ConfigError
from serving.instance.core.placeholder import rate_of
from serving.virtual.simulation import simulate
from tests.virtual.core.case import burst, config


def test_tokens_of_a_step_and_what_simulated_answers_expect() -> None:
    assert mtp_tokens_per_step(3, (0.85, 0.6, 0.4)) == pytest.approx(1 + 0.85 + 0.85 * 0.6 + 0.85 * 0.6 * 0.4)
    assert mtp_tokens_per_step(1, (0.85, 0.6, 0.4)) == pytest.approx(1.85)
    assert mtp_tokens_per_step(3, (0.7, 0.7, 0.7)) == pytest.approx(mtp_tokens_per_step(3, 0.7))
    assert mtp_tokens_per_step(0, (0.7,)) == 1
    shares = (0.85, 0.6, 0.4)
    rates = [rate_of(seed, 4096, 3, shares) for seed in range(400)]
    assert 1 + sum(rates) / len(rates) == pytest.approx(mtp_tokens_per_step(3, shares), rel=0.01)
    assert rate_of(5, 256, 2, (0.7, 0.7)) == pytest.approx(rate_of(5, 256, 2, 0.7))
    assert rate_of(5, 256, 2, (0.0, 0.7)) == 0


@pytest.mark.parametrize(
    ("shares", "told"),
    [((0.85,), "names 1 positions for 2 drafts: give one for each"), ((0.85, 1.5), "not possible")],
)
def test_shares_that_cannot_be(shares: tuple[float, ...], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        mtp_tokens_per_step(2, shares)


AGGREGATED = {"serving": {"mode": "aggregated"}, "aggregated": {"npus_per_instance": 16, "replicas": 1}}
APART = {"prefill": {"replicas": 1}, "decode": {"npus_per_instance": 32, "replicas": 1, "max_sequences": 512}}


@pytest.mark.parametrize("pools", [APART, AGGREGATED], ids=["disaggregated", "aggregated"])
def test_virtual_time_expects_the_same(pools: dict[str, dict[str, Any]]) -> None:
    def span_s(acceptance: float | tuple[float, ...]) -> float:
        simulation = {"drafts": 2, "acceptance": acceptance, "status_period_s": 0.0}
        result = simulate(config(**pools, simulation=simulation), burst(64, prompt=1024, output=300, every_s=0.0))
        assert "2 drafted, 85%" in result.config["MTP"] or not isinstance(acceptance, tuple)
        rows = result.requests
        return sum(b - a for a, b in zip(rows.first_token_s, rows.finish_s, strict=True))

    a = 0.85, 0.6
    same = (math.sqrt(1 + 4 * a[0] * (1 + a[1])) - 1) / 2  # a + a^2 = 0.85 + 0.85 x 0.6
    assert mtp_tokens_per_step(2, a) == pytest.approx(mtp_tokens_per_step(2, same))
    assert span_s(a) == pytest.approx(span_s(same), rel=0.01)
    assert span_s((0.85, 0.0)) > 1.2 * span_s(a), "the second draft is lost"


def written(tmp_path: Path, lines: str) -> Path:
    path = tmp_path / "by-position.toml"
    path.write_text(f'[model]\npath = "/nowhere"\n\n[simulation]\n{lines}\n')
    return path


def test_the_configuration_takes_a_number_or_a_list(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "drafts = 2\nacceptance = [0.85, 1]"))
    assert config.simulation.acceptance == (0.85, 1.0)
    assert "acceptance = [0.85, 1.0]" in config_text(config)
    assert load_config(written(tmp_path, "acceptance = 0.5")).simulation.acceptance == 0.5
    assert SimulationConfig().acceptance == 0.7


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("drafts = 2\nacceptance = [0.85]", "acceptance has 1 positions, but drafts = 2: give one for each draft"),
        ("acceptance = [1.5]", r"acceptance = 1\.5 must be between 0 and 1"),
        ("acceptance = []", r"acceptance = \[\] must be a number"),
        ('acceptance = ["a"]', r'acceptance = "a" must be a number'),
    ],
)
def test_lists_that_cannot_be(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(written(tmp_path, lines))
