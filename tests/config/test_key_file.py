"""API keys from a file, the environment and the command line: precedence, and refusals."""

import logging
import os
from pathlib import Path

import pytest

from serving.cli.key_environment import take_keys
from serving.config import ServeConfig, with_overrides
from serving.config.gateway import VARIABLE
from serving.errors import ConfigError
from tests.config.toml_file import checkpoint, load

CONFIGURED = '[gateway]\napi_keys = ["of-the-config"]\n'


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    checkpoint(tmp_path)
    return load(tmp_path, CONFIGURED)


def key_file(folder: Path, text: str | bytes = "of-the-file\n", mode: int = 0o600) -> Path:
    path = folder / "keys.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_one_key_a_line(config: ServeConfig, tmp_path: Path) -> None:
    file = key_file(tmp_path, "# those of the shop\n\n one \nschlüssel\r\n#\nlast")
    gateway = with_overrides(config, api_key_file=file).gateway
    assert gateway.api_keys == ("one", "schlüssel", "last"), "in place of those of the configuration"


def test_a_file_that_the_configuration_names_adds_its_keys(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    key_file(tmp_path)
    config = load(tmp_path, CONFIGURED + 'api_key_file = "keys.txt"\n')
    assert config.gateway.api_key_file == str(tmp_path.resolve() / "keys.txt")
    assert with_overrides(config).gateway.api_keys == ("of-the-config", "of-the-file")
    assert load(tmp_path, '[gateway]\napi_key_file = "keys.txt"\n').api_keys_required, (
        "the door is never open meanwhile"
    )


def test_flags_go_before_the_environment_and_that_before_the_configuration(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    file = key_file(tmp_path)
    config = load(tmp_path, CONFIGURED + 'api_key_file = "nowhere"\n')
    assert with_overrides(config, environment_keys="a,b\nc").gateway.api_keys == ("a", "b", "c")
    assert with_overrides(config, environment_keys="a", api_keys=["flag"]).gateway.api_keys == ("flag",)
    both = with_overrides(config, environment_keys="a", api_keys=["flag"], api_key_file=file)
    assert both.gateway.api_keys == ("flag", "of-the-file")


def test_others_who_may_read_the_file_are_warned_of(
    config: ServeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, warned in ((0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            with_overrides(config, api_key_file=key_file(tmp_path, mode=mode))
        assert len(caplog.records) == warned
        assert "of-the-file" not in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# none\n", "contains no key: write one per line"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"k" * (1 << 21), "larger than"),
        ("k\nk\n", "holds a key twice"),
    ],
)
def test_a_file_without_sense_is_refused(config: ServeConfig, tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_overrides(config, api_key_file=key_file(tmp_path, text))


def test_what_is_no_file_is_refused_at_once(config: ServeConfig, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "--api-key-file: .*a named pipe, not a regular file"),
        (tmp_path, "a folder, not a regular file"),
        (Path("/dev/zero"), "a device, not a regular file"),
        (tmp_path / "none", "there is no file"),
    ):
        with pytest.raises(ConfigError, match=message):
            with_overrides(config, api_key_file=path)


@pytest.mark.parametrize("text", ["", " \n", ",,"])
def test_an_empty_variable_is_no_open_door(config: ServeConfig, text: str) -> None:
    with pytest.raises(ConfigError, match="CLOUDMATRIX_API_KEYS is set but contains no key"):
        with_overrides(config, environment_keys=text)


def test_the_variable_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a b")
    assert [take_keys(), take_keys()] == ["a b", None]
    assert VARIABLE not in os.environ
