"""From configuration keys to access to a gateway, and its identity."""

import pickle
import re
from pathlib import Path

import pytest

from serving.config.engine import EngineConfig
from serving.config.gateway import GatewayConfig
from serving.config.kvcache import KvCacheConfig, NamespaceConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.config.simulation import Executor
from serving.errors import AuthenticationError
from serving.gateway.api.http.tenant import KeyRing
from serving.gateway.live.replica import _api_settings, _served_model
from serving.gateway.live.sealing import salt_of, sealed
from serving.values.pool_view import namespace_salt
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.random_tokenizer import write_tokenizer


def keys_of(gateway: GatewayConfig, *namespaces: NamespaceConfig, model: ModelConfig) -> KeyRing:
    config = ServeConfig(model=model, gateway=gateway, namespaces=namespaces)
    return KeyRing(_api_settings(sealed(config), b"pool salt"))


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=tmp_path_factory.mktemp("model"))


def test_every_kind_of_key_arrives(model: ModelConfig) -> None:
    gateway = GatewayConfig(api_keys=("plain",), admin_keys=("root", "boss"))
    keys = keys_of(gateway, NamespaceConfig("acme", ("a1", "boss")), NamespaceConfig("idle"), model=model)
    found = {key: keys.identify(f"Bearer {key}") for key in ("plain", "root", "a1", "boss")}
    assert {key: (tenant.namespace, tenant.admin) for key, tenant in found.items()} == {
        "plain": ("default", False),
        "root": ("default", True),
        "a1": ("acme", False),
        "boss": ("acme", True),
    }
    assert found["a1"].salt == namespace_salt(b"pool salt", "acme")
    with pytest.raises(AuthenticationError):
        keys.identify(None)


def test_nothing_that_opens_a_door_is_handed_on(model: ModelConfig) -> None:
    """Ray stores the arguments of replicas, perhaps on disk."""
    gateway = GatewayConfig(api_keys=("hide-1",), admin_keys=("hide-2",))
    tenants = (NamespaceConfig("acme", ("hide-3",)), NamespaceConfig("idle"))
    plain = ServeConfig(model=model, gateway=gateway, namespaces=tenants, kvcache=KvCacheConfig(salt="hide-4"))
    config = sealed(plain)
    assert b"hide" in pickle.dumps(plain)
    assert b"hide" not in pickle.dumps(config)
    assert config.api_keys_required
    assert salt_of(config) is None, "the system has one of its own"
    salt = salt_of(plain)
    assert salt is not None
    assert salt == salt_of(plain)
    assert b"hide" not in salt
    with pytest.raises(ValueError, match="hexadecimal"):
        _api_settings(plain, b"salt")


def test_no_keys_mean_an_open_server(model: ModelConfig) -> None:
    assert keys_of(GatewayConfig(), NamespaceConfig("quota-only", quota_mib=1), model=model).open


@pytest.mark.parametrize(
    ("gateway", "evil", "address", "name"),
    [
        (GatewayConfig(), False, False, False),
        (GatewayConfig(host="0.0.0.0"), False, True, False),
        (GatewayConfig(host="::"), False, True, False),
        (GatewayConfig(host="llm.example.com"), False, True, True),
        (GatewayConfig(allowed_hosts=("LLM.example.com",)), False, False, True),
        (GatewayConfig(allowed_hosts=("*",)), True, True, True),
        (GatewayConfig(api_keys=("k",)), True, True, True),
        (GatewayConfig(admin_keys=("k",), allowed_hosts=("*.example.com",)), False, False, True),
    ],
)
def test_names_of_this_server_where_no_key_proves_anything(
    model: ModelConfig, gateway: GatewayConfig, evil: bool, address: bool, name: bool
) -> None:
    hosts = _api_settings(sealed(ServeConfig(model=model, gateway=gateway)), b"salt").hosts
    asked = ("evil.example:8000", "192.0.2.1:8000", "llm.example.com:8000", "localhost:8000", "127.0.0.1:8000")
    assert [hosts is None or hosts.allow(host) for host in asked] == [evil, address, name, True, True]


@pytest.mark.parametrize(("executor", "known"), [("auto", 320), ("simulated", 276)])
def test_the_model_says_which_tokens_there_are(tmp_path: Path, executor: Executor, known: int) -> None:
    """A separate tokenizer folder may have more or fewer tokens; a simulated model uses the tokenizer's words."""
    checkpoint = write_random_checkpoint(tmp_path / "model")
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer", 276, 1024)
    model = ModelConfig(path=checkpoint, tokenizer=str(tmp_path / "tokenizer"))
    served = _served_model(ServeConfig(model=model, engine=EngineConfig(executor=executor)), created=7)
    assert served.token_limit == known
    assert served.created == 7
    said = "-placeholder-tokens" if executor == "simulated" else ""
    assert re.fullmatch(rf"fp_[0-9a-f]{{10}}{said}", served.fingerprint)
