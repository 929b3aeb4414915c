"""`cloudmatrix agents`: files for each agent, and mistakes."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.cli import main
from tests.cli.gateway import answering


@pytest.fixture
def gateway() -> Iterator[str]:
    with answering(lambda _: (200, {"data": [{"id": "small/tales", "max_model_len": 65_536}]})) as url:
        yield url


def test_files_for_every_agent(gateway: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "--url", gateway, "--api-key", "k", "--write", str(tmp_path)]) == 0
    said = capsys.readouterr()
    codex = tomllib.loads((tmp_path / "codex/config.toml").read_text())
    catalog = json.loads(Path(codex["model_catalog_json"]).read_text())
    assert (codex["model"], catalog["models"][0]["context_window"]) == ("small/tales", 65_536)
    assert codex["model_providers"]["cloudmatrix"]["base_url"] == f"{gateway}/v1"
    claude = json.loads((tmp_path / "claude/settings.json").read_text())["env"]
    assert (claude["ANTHROPIC_BASE_URL"], claude["ANTHROPIC_AUTH_TOKEN"]) == (gateway, "k")
    assert claude["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    opencode = json.loads((tmp_path / "opencode/opencode.json").read_text())
    assert opencode["provider"]["cloudmatrix"]["models"]["small/tales"]["limit"]["context"] == 65_536
    assert f"OPENAI_BASE_URL={gateway}/v1\n" in (qwen := (tmp_path / "qwen/.env").read_text())
    assert f"QWEN_CODE_SYSTEM_DEFAULTS_PATH={tmp_path}/qwen/settings.json\n" in qwen
    defaults = json.loads((tmp_path / "qwen/settings.json").read_text())
    assert defaults["model"]["generationConfig"]["contextWindowSize"] == 65_536
    assert f"Codex: CLOUDMATRIX_API_KEY=... CODEX_HOME={tmp_path}/codex codex" in said.out
    assert said.err == "", "all first prompts fit"
    assert {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*") if file.is_file()} == {0o600}
    assert main(["agents", "--url", gateway, "--api-key", "k", "--write", str(tmp_path)]) == 0, "the same again"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Error text for a wrong command line."""
    assert main(["agents", *words]) in (2, 3)
    return capsys.readouterr().err


def test_files_that_differ_are_replaced_only_by_force(
    gateway: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["claude", "--url", gateway, "--write", str(tmp_path)]
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude/settings.json").write_text("{}")
    assert "settings.json is there and differs: --force replaces it" in refusal(capsys, *words)
    assert main(["agents", *words, "--force"]) == 0
    assert "ANTHROPIC_MODEL" in (tmp_path / "claude/settings.json").read_text()
    assert "cannot be written" in refusal(capsys, *words[:-1], "/proc/none")
    assert "--force needs --write" in refusal(capsys, *words[:-2], "--force")


def test_without_write_nothing_is_written_and_a_short_context_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering(lambda _: (200, {"data": [{"id": "tiny", "max_model_len": 2048}]})) as url:
        assert main(["agents", "codex", "--url", url]) == 0
    said = capsys.readouterr()
    assert f'base_url = "{url}/v1"' in said.out
    assert "env_key" not in said.out
    assert "9,600 tokens, and tiny has a context of 2,048: start the server with --context 32768" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", [{}, {"data": []}, {"data": [{"id": "tiny"}]}])
def test_what_is_no_gateway_is_told(answer: object, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda _: (200, answer)) as url:
        assert f"{url} serves no model" in refusal(capsys, "--url", url)
