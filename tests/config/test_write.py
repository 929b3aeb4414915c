"""A configuration that was written reads back as the same one, without secrets."""

import dataclasses
from pathlib import Path

import pytest

from serving.config.effects import all_keys
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.config.write import config_text
from tests.config.other_values import other_value
from tests.config.toml_file import write
from tests.virtual.core.key_cases import changed

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("file", [*DEPLOY.glob("*.toml")], ids=lambda file: file.stem)
def test_shipped_files_read_back(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    (tmp_path / "again.toml").write_text(config_text(config), encoding="utf-8")
    again = load_config(tmp_path / "again.toml")
    if file.stem == "tenants":  # its keys are secrets
        config = dataclasses.replace(config, gateway=again.gateway, namespaces=again.namespaces)
    assert again == config


def test_names_with_quotes_and_letters_of_all_kinds_read_back(tmp_path: Path) -> None:
    config = load_config(DEPLOY / "small.toml")
    for name in ('a "b" \\ c', "ü – 漢字 😀", "tab\there, del\x7f", "true"):
        named = dataclasses.replace(config, model=dataclasses.replace(config.model, name=name))
        (tmp_path / "again.toml").write_text(config_text(named), encoding="utf-8")
        assert load_config(tmp_path / "again.toml").model.name == name


def test_every_key_that_is_no_secret_is_written(tmp_path: Path) -> None:
    config = load_config(DEPLOY / "small.toml")
    bare = {name for name in all_keys() if not name.startswith("namespaces.")}
    hidden = {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(ServeConfig)
        if dataclasses.is_dataclass(value := getattr(config, section.name))
        for field in dataclasses.fields(value)
        if not field.repr
    }
    assert hidden >= {"gateway.api_keys", "gateway.admin_keys", "kvcache.salt"}
    for key in sorted(bare):
        value = other_value(config, key)
        text = config_text(changed(config, {key: value}))
        name = key.rpartition(".")[2]
        assert (f"\n{name} = " in text) == (key not in hidden), key


def test_no_secret_is_written(tmp_path: Path) -> None:
    text = '[gateway]\napi_keys = ["hush-hush-hush-1"]\nadmin_keys = ["hush-hush-hush-2"]\n'
    config = load_config(write(tmp_path, text))
    assert config.gateway.api_keys
    assert "hush" not in config_text(config)
