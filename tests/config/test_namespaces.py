"""Tenants: their names, their keys, and whether a key is required."""

import re
from pathlib import Path

import pytest

from serving.config import NamespaceConfig
from serving.errors import ConfigError
from tests.config.toml_file import load

ACME = '[[namespaces]]\nname = "acme"\n'


def test_namespaces_keep_their_order(tmp_path: Path) -> None:
    config = load(tmp_path, f'{ACME}api_keys = ["k"]\nquota_mib = 7\n[[namespaces]]\nname = "B.b-b_1"\n')
    assert config.namespaces == (NamespaceConfig("acme", ("k",), 7), NamespaceConfig("B.b-b_1"))


@pytest.mark.parametrize("name", [".", "..", ".hidden", "a/b", "a b", "ü", "-a", "a" * 65, "a\\n"])
def test_a_name_must_be_fit_for_a_path_and_a_label(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be 1 to 64 letters, digits"):
        load(tmp_path, f'[[namespaces]]\nname = "{name}"\n')


REFUSED = {
    "two of one name": (ACME + ACME, "two [[namespaces]] are called 'acme': give each its own name"),
    "a key of two tenants": (
        f'{ACME}api_keys = ["k"]\n[[namespaces]]\nname = "b"\napi_keys = ["k"]\n',
        "[[namespaces]] acme and [[namespaces]] b share an API key: a key belongs to one namespace",
    ),
    "a tenant's key that is everybody's too": (
        f'{ACME}api_keys = ["k"]\n[gateway]\napi_keys = ["k"]\n',
        "[[namespaces]] acme and [gateway] share an API key: a key belongs to one namespace",
    ),
    "a key twice": (f'{ACME}api_keys = ["k", "k"]\n', "[[namespaces]] acme api_keys holds a key twice: remove one"),
    "everybody's key twice": ('[gateway]\napi_keys = ["k", "k"]\n', "[gateway] api_keys holds a key twice"),
    "a key that nobody can send": (
        f'{ACME}api_keys = ["k "]\n',
        "[[namespaces]] acme api_keys holds a key that begins",
    ),
    "an admin key twice": ('[gateway]\nadmin_keys = ["k", "k"]\n', "[gateway] admin_keys holds a key twice"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_keys_that_say_two_things_are_refused_and_not_shown(tmp_path: Path, text: str, message: str) -> None:
    text = text.replace('"k"', '"sk-secret"')
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(tmp_path, text)
    assert "sk-secret" not in str(caught.value)


def test_a_tenants_key_may_administer(tmp_path: Path) -> None:
    config = load(tmp_path, f'{ACME}api_keys = ["k"]\n[gateway]\nadmin_keys = ["k"]\n')
    assert config.gateway.admin_keys == config.namespaces[0].api_keys


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ("", False),
        (ACME, False),
        (f'{ACME}api_keys = ["k"]\n', True),
        ('[gateway]\napi_keys = ["k"]\n', True),
        ('[gateway]\nadmin_keys = ["k"]\n', True),
    ],
)
def test_any_key_closes_the_door(tmp_path: Path, text: str, required: bool) -> None:
    assert load(tmp_path, text).api_keys_required is required


def test_secrets_stay_out_of_logs(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        f'{ACME}api_keys = ["hide-1"]\n[gateway]\nadmin_keys = ["hide-2"]\n'
        '[kvcache]\nsalt = "hide-3"\ndirectory = "redis://:hide-4@host"\n',
    )
    assert "hide" not in repr(config)


def test_the_disk_folder_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert load(tmp_path, '[kvcache]\nssd_mib = 1\nssd_path = "ssd"\n').kvcache.ssd_path == str(tmp_path / "ssd")
    assert load(tmp_path, "").kvcache.ssd_path == ""
