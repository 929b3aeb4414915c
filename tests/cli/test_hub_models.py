"""Commands that take a model: from the Hugging Face Hub, or from a folder without any Hub import."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from serving.cli import main
from serving.config.load import load_config
from serving.model import hub as hub_module
from serving.model.hub import HubFolder
from serving.model.hub_model import model_folder, with_model_folder
from tests.fakes.hub import NAME, FakeHub, fake_hub
from tests.model.random_checkpoint import write_random_checkpoint

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"
TINY_DIES = ("--set", "hardware.hbm_per_die_mib=1", "--set", "hardware.workspace_share=0.9")
SMALL = STORYTELLER.parents[1] / "small.toml"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """A fake Hub with one model."""
    with fake_hub() as found:
        found.add(write_random_checkpoint(tmp_path / "repository"))
        yield found


def run(hub: FakeHub, tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process with the Hub of the environment."""
    with started(hub, tmp_path, *words, **environment) as process:
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def started(hub: FakeHub, tmp_path: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start such a command. Returns: its process."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "serving.cli", *words],  # a shell may have had it ignored
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), **environment},
    )


def test_a_prediction_reads_only_the_configuration(hub: FakeHub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "cost", "--model", NAME, "--dies", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert hub.files_asked == {"config.json", "generation_config.json"}
    assert done.stderr.startswith(f"cloudmatrix: model {NAME}: commit ")


@pytest.mark.parametrize(
    ("words", "environment", "line"),
    [
        (["cost", "--model", "test/nothing"], {}, 'there is no folder "test/nothing", and http://'),
        pytest.param(
            ["serve", "--model", f"{NAME}@v9"], {}, f"{NAME} has no revision v9",
            marks=pytest.mark.nightly("tests/model/test_hub.py::test_names_that_the_hub_does_not_have_are_said"),
        ),
        pytest.param(
            ["quantize", "--model", NAME, "--out", "o"], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids",
            marks=pytest.mark.nightly("tests/model/test_hub.py::test_offline_the_cache_is_enough_if_it_has_everything"),
        ),
        pytest.param(
            ["evaluate", "--model", NAME, "--text", "t"], {"HF_ENDPOINT": "http://127.0.0.1:1"}, "cannot be reached",
            marks=pytest.mark.nightly("tests/model/test_hub.py::test_without_a_network_and_cache_a_folder_is_asked_for"),
        ),
        (["serve", "--model", NAME, *TINY_DIES], {}, "GiB they fit: add --set hardware.hbm_per_die_mib="),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_of_any_command(
    hub: FakeHub, tmp_path: Path, words: list[str], environment: Mapping[str, str], line: str
) -> None:
    """The library reads its environment once, so each environment needs a separate process."""
    done = run(hub, tmp_path, *words, **environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("cloudmatrix: ")
    assert line in done.stderr


TERMINATED = "tests/cli/test_hub_models.py::test_a_download_is_ended_at_once_and_leaves_no_half_file"


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly(TERMINATED)), signal.SIGTERM])
def test_a_download_is_ended_at_once_and_leaves_no_half_file(
    hub: FakeHub, tmp_path: Path, ending: signal.Signals
) -> None:
    hub.stalls = "model.safetensors"
    with started(hub, tmp_path, "serve", "--model", NAME) as process:
        assert hub.stalled.wait(60)
        process.send_signal(ending)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("cloudmatrix: interrupted\n")
    kept = {path.name for path in (tmp_path / "hf").rglob("*") if path.is_file()}
    assert "tokenizer.json" in kept
    assert not [name for name in kept if name.endswith((".incomplete", ".safetensors"))]


def test_a_start_with_a_folder_does_not_import_the_hubs_library() -> None:
    """All checks of a start run; the last one finds the port in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = (
            "import sys; from serving.cli import main;"
            f"code = main(['serve', '--model', {str(STORYTELLER)!r}, '--port', '{taken.getsockname()[1]}']);"
            "print(code, 'huggingface_hub' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "2 False\n", done.stderr
    assert "is taken" in done.stderr or "in use" in done.stderr


def test_what_is_served_has_the_hubs_name_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def fetch(reference: object, tell: object, part: str, *, tokenizer: bool, check: object) -> HubFolder:
        asked.append((part, tokenizer))
        return HubFolder(STORYTELLER, "abc")

    monkeypatch.setattr(hub_module, "fetch", fetch)
    named = load_config(SMALL, model="org/name@v1")
    model = with_model_folder(named, print).model
    assert (model.path, model.name, model.version, model.hub) == (STORYTELLER, "org/name", "abc", None)
    own = load_config(SMALL, model="org/name", settings=["model.version=mine", f"model.tokenizer={STORYTELLER}"])
    assert with_model_folder(own, print).model.version == "mine"
    with_model_folder(named, print, weights=False)
    simulated = load_config(
        SMALL,
        model="org/name",
        settings=["engine.executor=simulated", "hardware.hbm_per_die_mib=0", "kvcache.ssd_mib=0"],
    )
    with_model_folder(simulated, print)
    assert asked == [("all", True), ("all", False), ("config", True), ("text", True)]


def test_a_folder_is_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", f"./{NAME}"]) == 2
    assert "no model folder /" in capsys.readouterr().err
    assert model_folder(str(STORYTELLER), print) == STORYTELLER
    config = load_config(SMALL)
    assert with_model_folder(config, print) is config
