"""Every file, flag and response that is nested too deeply is refused in one line, by every reader."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardware.cost.device_file import parse_device
from hardware.cost.model_config import load_shape
from hardware.errors import SpecError
from loadgen.cli.values import json_object
from loadgen.errors import TraceFormatError
from loadgen.run_folder import RESULT, SENT, read_bodies, read_result
from loadgen.trace import TraceHeader, open_trace
from loadgen.trace.lines import json_lines
from loadgen.trace.recorded import header_line
from loadgen.trace.servegen import Client
from loadgen.workload.datasets.sharegpt import entries
from loadgen.workload.lengths import read_histogram
from serving.config.load import load_config
from serving.errors import ConfigError, ModelError, ScaleError
from serving.faults.scenario import load_scenario
from serving.gateway.api.tokenizer import read_json
from serving.model.checkpoint import Checkpoint
from serving.model.config import read_architecture
from serving.scaling.dashboard.handlers import RayScale, from_json
from serving.tools.evaluate.tasks.questions import read_split
from serving.tools.evaluate.texts import read_documents
from serving.virtual.workload.columns import TraceError
from serving.virtual.workload.open import open_workload
from tests.nested import arrays

HEADER = header_line(TraceHeader(block_tokens=16, hash_ids="given", requests=1)) + "\n"


def listed(read: Callable[[Path], Any]) -> Callable[[Path], list[Any]]:
    """All values of a lazy reader."""
    return lambda path: list(read(path))


def split(path: Path) -> object:
    return read_split([path.name], path.parent)


def lines(path: Path) -> object:
    return list(json_lines(path, dict, "an object"))


def client(path: Path) -> object:
    return Client(0, {}, path).lengths(0.0)


def requests(path: Path) -> object:
    return list(open_trace(path).requests())


def device(path: Path) -> object:
    return parse_device(path.read_text(), "own")


def folder_of(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda path: read(path.parent)


READERS: dict[str, tuple[Callable[[Path], Any], str, str, type[Exception]]] = {
    "a device": (device, "own.toml", "title = DEEP", SpecError),
    "a fault schedule": (load_scenario, "faults.toml", "fault = DEEP", ConfigError),
    "a fault schedule as JSON": (load_scenario, "faults.json", '{"fault": DEEP}', ConfigError),
    "a model's shape": (load_shape, "config.json", '{"hidden_size": DEEP}', SpecError),
    "a model's configuration": (folder_of(read_architecture), "config.json", '{"vocab_size": DEEP}', ModelError),
    "an index of weights": (
        folder_of(Checkpoint),
        "model.safetensors.index.json",
        '{"weight_map": {}, "metadata": DEEP}',
        ModelError,
    ),
    "a tokenizer's configuration": (read_json, "tokenizer_config.json", '{"bos_token": DEEP}', ModelError),
    "a configuration": (load_config, "site.toml", "model = DEEP", ConfigError),
    "questions in lines": (split, "docs.jsonl", '{"q": DEEP}', ConfigError),
    "questions in a list": (split, "docs.json", '[{"q": DEEP}]', ConfigError),
    "documents": (read_documents, "text.jsonl", '{"text": DEEP}', ConfigError),
    "a simulator's trace": (open_workload, "trace.jsonl", '{"input_length": 1, "odd": DEEP}', TraceError),
    "a trace's header": (requests, "trace.jsonl", '{"schema": DEEP}', TraceFormatError),
    "a trace's line": (requests, "trace.jsonl", HEADER + '{"turn": DEEP}', TraceFormatError),
    "lengths of a load": (client, "chunk-0-dataset.json", '{"0": {"input_tokens": DEEP}}', TraceFormatError),
    "a histogram": (read_histogram, "lengths.json", '{"1": DEEP}', TraceFormatError),
    "a data set in lines": (lines, "d.jsonl", '{"a": DEEP}', TraceFormatError),
    "a data set in a list": (listed(entries), "d.json", '[{}, {"a": DEEP}]', TraceFormatError),
    "a run's result": (folder_of(read_result), RESULT, '{"loadgen": DEEP}', TraceFormatError),
    "a run's bodies": (folder_of(read_bodies), SENT, '{"index": DEEP}', TraceFormatError),
}


@pytest.mark.parametrize("levels", [200, 2000, 60_000])
@pytest.mark.parametrize("name", READERS)
def test_a_file_is_refused_in_one_line(name: str, levels: int, tmp_path: Path) -> None:
    read, file, text, kind = READERS[name]
    path = tmp_path / file
    path.write_text(text.replace("DEEP", arrays(levels)))
    with pytest.raises(kind, match=r"nested more than 128 deep") as refused:
        read(path)
    assert str(path) in str(refused.value) or "own" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("levels", [200, 2000, 60_000])
def test_what_else_people_give_is_refused(levels: int, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    with pytest.raises(ConfigError, match=r"^--set model\.path: it is nested more than 128 deep"):
        load_config(tmp_path / "site.toml", settings=[f"model.path={arrays(levels)}"])
    with pytest.raises(argparse.ArgumentTypeError, match="nested more than 128 deep"):
        json_object(f'{{"a": {arrays(levels)}}}')
    with pytest.raises(ScaleError, match="nested more than 128 deep"):
        from_json(f'{{"target_num_replicas": 1, "odd": {arrays(levels)}}}'.encode(), RayScale)
