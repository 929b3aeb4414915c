"""`system_fingerprint`, and `x-request-id` behind Serve's own proxy."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.http_util import RequestIdMiddleware

from serving.config.engine import EngineConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.gateway.api.http.access import WithoutRequestId
from serving.gateway.api.settings import ServedModel
from serving.gateway.live.fingerprint import system_fingerprint
from tests.gateway.api.support import Harness, chat, events, request, write_model_folder
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.random_tokenizer import write_tokenizer


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    folder = write_random_checkpoint(tmp_path / "model")
    write_tokenizer(folder, 276, 1024)
    return ServeConfig(model=ModelConfig(path=folder))


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    return ServedModel.from_folder(write_model_folder(tmp_path), names=("tiny",), max_model_len=512, created=7)


def test_copies_of_a_model_have_the_same_fingerprint(config: ServeConfig, tmp_path: Path) -> None:
    copy = shutil.copytree(config.model.path, tmp_path / "copy")
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    other = replace(config, model=replace(config.model, path=copy))
    assert system_fingerprint(config) == system_fingerprint(config) == system_fingerprint(other)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_what_changes_answers_changes_the_fingerprint(config: ServeConfig, name: str) -> None:
    before = system_fingerprint(config)
    with (config.model.path / name).open("a") as file:
        file.write("\n")
    after = system_fingerprint(config)
    assert after != before
    assert system_fingerprint(replace(config, engine=EngineConfig(kv_dtype="int8"))) != after
    assert system_fingerprint(replace(config, model=replace(config.model, dtype="bfloat16"))) != after
    assert system_fingerprint(replace(config, engine=EngineConfig(draft_tokens=2))) == after, "never changes answers"


def test_simulated_npus_say_that_their_tokens_are_placeholders(config: ServeConfig) -> None:
    assert re.fullmatch("fp_[0-9a-f]{10}", system_fingerprint(config))
    simulated = replace(config, engine=EngineConfig(executor="simulated"))
    assert re.fullmatch("fp_[0-9a-f]{10}-placeholder-tokens", system_fingerprint(simulated))


def test_other_weights_of_the_same_size_are_told_apart(config: ServeConfig) -> None:
    before = system_fingerprint(config)
    (weights, *_) = sorted(config.model.path.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert system_fingerprint(config) != before


def test_answers_and_chunks_carry_it(served: ServedModel) -> None:
    app = Harness(replace(served, fingerprint="fp_0123456789")).app
    assert chat(app).json()["system_fingerprint"] == "fp_0123456789"
    assert {one["system_fingerprint"] for one in events(chat(app, stream=True).text)[:-1]} == {"fp_0123456789"}
    assert "system_fingerprint" not in chat(Harness(served).app).json()


@pytest.mark.parametrize("given", [{}, {"x-request-id": "mine"}])
def test_the_request_id_stands_once_behind_serves_proxy(served: ServedModel, given: dict[str, str]) -> None:
    app: Any = RequestIdMiddleware(WithoutRequestId(Harness(served).app))
    (found,) = request(app, "GET", "/health", headers=given).headers.get_list("x-request-id")
    assert found == given.get("x-request-id", found)
