"""No response reveals the model's path on the server's disks."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.gateway.api.settings import ServedModel, model_root
from tests.gateway.api.support import Harness, request

TOLD = ("/v1/models", "/v1/models/tiny", "/tokenizer_info", "/version", "/load", "/ready", "/metrics", "/openapi.json")


def test_no_answer_has_the_folders_path(served: ServedModel, model_folder: Path) -> None:
    config = {**served.tokenizer.config, "name_or_path": f"{model_folder}/"}
    harness = Harness(replace(served, tokenizer=replace(served.tokenizer, config=config)))
    for path in TOLD:
        assert str(model_folder.parent) not in request(harness.app, "GET", path).text, path
    assert request(harness.app, "GET", "/v1/models").json()["data"][0]["root"] == model_folder.name
    assert request(harness.app, "GET", "/tokenizer_info").json()["name_or_path"] == model_folder.name


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("/srv/models/storyteller", "storyteller"),
        ("models/tiny/", "tiny"),
        ("/home/user/.cache/huggingface/hub/models--org--some-name/snapshots/0a1b", "org/some-name"),
        ("/srv/snapshots/mine", "mine"),
    ],
)
def test_the_name_is_enough(folder: str, told: str) -> None:
    assert model_root(Path(folder)) == told


@pytest.mark.parametrize("name", ["org/name", "name"])
def test_names_of_the_hub_stay(served: ServedModel, name: str) -> None:
    tokenizer = replace(served.tokenizer, config={"name_or_path": name})
    assert replace(served, tokenizer=tokenizer).tokenizer_info["name_or_path"] == name
