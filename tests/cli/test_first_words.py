"""The first words of a command line: a missing or mistyped command is reported with the existing ones."""

from pathlib import Path

import pytest

from hardware.units import GIB, MIB
from loadgen.cli import main as loadgen
from serving.cli import command_line
from serving.config.load import read_config
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch.machine import require_room


@pytest.mark.parametrize(
    ("word", "meant"), [("serv", "serve"), ("staus", "status"), ("pools", "pool"), ("simulat", "simulate")]
)
def test_a_mistaken_command_gets_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.main([word, "--port", "9"])
    complaint = capsys.readouterr().err
    assert complaint == (
        f"cloudmatrix: there is no command {word}; did you mean {meant}? `cloudmatrix --help` lists every COMMAND\n"
    )


def test_loadgen_does_so_too_and_nothing_is_guessed_from_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        loadgen.main(["rum"])
    assert "did you mean run?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command_line.main(["zzzzz"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("main", [command_line.main, loadgen.main])
def test_a_bare_command_prints_its_help(capsys: pytest.CaptureFixture[str], main: object) -> None:
    assert callable(main)
    with pytest.raises(SystemExit, match="2"):
        main([])
    told = capsys.readouterr()
    assert told.out.startswith("usage: ")
    assert told.err.endswith(": no COMMAND was given\n")


def test_a_missing_configuration_is_told_with_the_path_that_was_tried_and_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "other.toml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_config("mime.toml")
    line = str(caught.value)
    assert f"no configuration file {tmp_path}/mime.toml" in line
    assert f"{tmp_path} has mine.toml, other.toml" in line
    assert "small.toml" in line
    assert "\n" not in line


def test_sizes_of_dies_and_weights_are_in_one_unit() -> None:
    config = ServeConfig(ModelConfig(Path("model")))
    with pytest.raises(ConfigError) as caught:
        require_room(config, 3 * GIB, MIB, here=False)
    assert "take 3 GiB" in str(caught.value)
    assert "MiB" not in str(caught.value)
