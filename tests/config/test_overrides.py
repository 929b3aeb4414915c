"""Command-line overrides of the file, and the check of the model folder."""

from pathlib import Path

import pytest

from serving.config import check_model_folder, with_overrides
from serving.errors import ConfigError
from tests.config.toml_file import checkpoint, load


def test_without_flags_nothing_changes(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    config = load(tmp_path, "[gateway]\nport = 9001\n")
    assert with_overrides(config) == config


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    config = load(tmp_path, '[gateway]\nport = 9001\napi_keys = ["old"]\nmax_queued_requests = 7\n')
    changed = with_overrides(config, host="0.0.0.0", port=9002, api_keys=["a", "b"]).gateway
    assert (changed.host, changed.port, changed.api_keys) == ("0.0.0.0", 9002, ("a", "b"))
    assert changed.max_queued_requests == 7


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    with pytest.raises(ConfigError, match=r"no model folder .*checkpoint: name one with --model or \[model\] path"):
        with_overrides(config)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        check_model_folder(load(tmp_path, "").model)


def test_a_tenants_key_cannot_become_everybodys(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    config = load(tmp_path, '[[namespaces]]\nname = "acme"\napi_keys = ["k"]\n')
    assert with_overrides(config, api_keys=["other"]).api_keys_required
    with pytest.raises(ConfigError, match=r"^\[\[namespaces\]\] acme and \[gateway\] share an API key"):
        with_overrides(config, api_keys=["k"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": 70000}, "^--port = 70000 must be between 1 and 65535$"),
        ({"host": ""}, "^--host must not be empty$"),
        ({"api_keys": [""]}, "^--api-key holds an empty string: remove it$"),
    ],
)
def test_flags_are_checked_like_the_file(tmp_path: Path, flags: dict[str, object], message: str) -> None:
    checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=message):
        with_overrides(load(tmp_path, ""), **flags)  # type: ignore[arg-type]


def test_the_gateway_cannot_be_moved_onto_the_dashboards_port(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=r"port = 8265 is also \[cluster\] dashboard_port"):
        with_overrides(load(tmp_path, ""), port=8265)


def test_a_tokenizer_of_its_own_is_found_beside_the_file_or_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    config = load(tmp_path, "", model='[model]\npath = "checkpoint"\ntokenizer = "words"\n')
    with pytest.raises(ConfigError, match=r"words holds no tokenizer\.json"):
        with_overrides(config)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    assert with_overrides(config).model.tokenizer_folder == (tmp_path / "words").resolve()
    assert load(tmp_path, "").model.tokenizer_folder == (tmp_path / "checkpoint").resolve()


def test_a_device_file_is_found_beside_the_configuration(tmp_path: Path) -> None:
    assert load(tmp_path, '[simulation]\ndevice = "mine.toml"\n').simulation.device == str(tmp_path / "mine.toml")
    assert load(tmp_path, '[simulation]\ndevice = "h800"\n').simulation.device == "h800"
