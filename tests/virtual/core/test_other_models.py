"""Models other than DeepSeek-R1 in virtual time: dense ones, grouped attention, their reported accuracy, refusals."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.virtual.report.simulation_console import print_summary
from serving.virtual.report.simulation_page import report_page
from serving.virtual.report.summary import summarize
from serving.virtual.result import ACCURACY, Outcome
from serving.virtual.simulation import simulate
from tests.hardware.cost.known import KNOWN, known
from tests.virtual.core.case import burst, config

GROUPED = "not checked: no published row of grouped attention was fitted"
SMALL = {"prefill": {"replicas": 1, "npus_per_instance": 1}, "decode": {"npus_per_instance": 4, "max_sequences": 256}}


def of(folder: Path, name: str, sections: dict[str, dict[str, Any]] = SMALL, *, drafts: int = 0) -> ServeConfig:
    """A system, small by default, that serves a published model."""
    (folder / "config.json").write_text(json.dumps(KNOWN[name]), encoding="utf-8")
    model = {"path": folder, "name": name}
    return config(model=model, simulation={"drafts": drafts}, **sections)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b"])
def test_a_small_system_serves_it(name: str, tmp_path: Path) -> None:
    result = simulate(of(tmp_path, name), burst(12, prompt=1500, output=40), check=True)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 12
    shape, totals = known(name), result.totals
    assert totals.kv_bytes_handed_off == 12 * 1500 * shape.kv_token_bytes()
    assert (totals.expert_bytes > 0) == (shape.experts > 0)


def test_its_reports_say_that_nothing_was_fitted(tmp_path: Path) -> None:
    result = simulate(of(tmp_path, "llama-3.1-8b"), burst(3, prompt=600, output=4))
    assert GROUPED in result.config[ACCURACY]
    console = Console(record=True, width=120, file=io.StringIO())
    print_summary(result, summarize(result), console)
    assert GROUPED in console.export_text()
    assert GROUPED in report_page(result)
    assert ACCURACY not in simulate(config(), burst(1, prompt=600, output=4)).config
    with pytest.raises(ConfigError, match="has no MTP module to draft 1 tokens with; set drafts to 0"):
        simulate(of(tmp_path, "llama-3.1-8b", drafts=1), burst(1))


@pytest.mark.parametrize(
    ("name", "sections"), [("deepseek-v3.2", {}), ("gpt-oss-20b", SMALL), ("mistral-7b-v0.1", SMALL)]
)
def test_contexts_beyond_what_attention_reads(name: str, sections: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Longer than `index_topk` or the window, which were refused."""
    result = simulate(of(tmp_path, name, sections), burst(2, prompt=9000, output=8), check=True)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 2
    assert result.totals.kv_bytes_handed_off == 2 * 9000 * known(name).kv_token_bytes()
