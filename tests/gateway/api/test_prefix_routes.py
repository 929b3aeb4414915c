"""`POST /query`: what is cached of a prompt, and for whom."""

from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.prefix_hits import PrefixHit, joined, prefix_hit
from serving.values.pool_view import namespace_salt, request_salt
from serving.values.prefix_hash import prefix_hashes
from tests.gateway.api.support import Harness, bearer, check, post

SALT = b"secret of the pool"


def ask(harness: Harness, key: str = "", **fields: Any) -> Any:
    body = {"model": harness.model.names[0], "block_size": 16, "token_ids": [*range(33)], **fields}
    return post(harness.app, "/query", body, headers=bearer(key) if key else {})


@pytest.fixture
def closed(served: ServedModel) -> Harness:
    acme = NamespaceKeys("acme", (hash_api_key("a"),), 1.0)
    plain, admin = (hash_api_key("d"),), (hash_api_key("root"),)
    settings = ApiSettings(
        version="1", api_key_hashes=plain, admin_key_hashes=admin, namespaces=(acme,), pool_salt=SALT
    )
    return Harness(served, settings)


def asked(harness: Harness) -> Any:
    return harness.prefixes.asked


def test_both_spellings_of_mooncake(served: ServedModel) -> None:
    numbers = {"gpu": 16, "cpu": 16, "disk": 32, "GPU": 16, "CPU": 16, "DISK": 32}
    first = {"longest_matched": 32, "dp": {"0": 16}, "DP": {"0": 16}, **numbers}
    second = {**first, "dp": {"1": 0}, "DP": {"1": 0}, "gpu": 0, "GPU": 0}
    harness = Harness(served)
    assert ask(harness).json() == {"default": {"decode#1": first, "decode#2": second}}
    assert ask(harness, instance_id="decode#2").json() == {"default": {"decode#2": second}}
    assert ask(harness, instance_id="decode#9", lora_name=None).json() == {"default": {}}
    assert ask(harness, token_ids=[1, 2, 3]).json()["default"]["decode#1"]["longest_matched"] == 0


def test_a_tenant_asks_about_its_own_cache_and_an_administrator_about_all(closed: Harness) -> None:
    tokens = [*range(33)]
    for key, fields, name, salt in (
        ("a", {}, "acme", None),
        ("a", {"tenant_id": "acme", "cache_salt": "mine"}, "acme", "mine"),
        ("d", {}, "default", None),
        ("root", {"tenant_id": "acme"}, "acme", None),
    ):
        assert list(ask(closed, key, **fields).json()) == [name]
        hashes = prefix_hashes(tokens, 16, request_salt(namespace_salt(SALT, name), salt))
        assert asked(closed)[-1] == (name, hashes)
    for key, tenant in (("a", "default"), ("d", "acme"), ("a", "nobody")):
        check(ask(closed, key, tenant_id=tenant), 403, param="tenant_id", code="permission_denied")
    check(ask(closed, "root", tenant_id="nobody"), 400, param="tenant_id", text="there is no tenant")
    check(ask(closed), 401)
    assert len(asked(closed)) == 4


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"block_size": 4}, 400, "block_size"),
        ({"block_size": 0}, 400, "block_size"),
        ({"model": "another"}, 404, "model"),
        ({"token_ids": [5] * 1_000_000}, 400, "token_ids"),
        ({"token_ids": [1, -1]}, 400, "token_ids[1]"),
        ({"token_ids": "text"}, 400, "token_ids"),
        ({"lora_name": "sql"}, 400, "lora_name"),
        ({"cache_salt": ""}, 400, "cache_salt"),
        ({"tenant_id": 7}, 400, "tenant_id"),
    ],
)
def test_wrong_questions(served: ServedModel, fields: dict[str, Any], status: int, param: str) -> None:
    harness = Harness(served)
    check(ask(harness, **fields), status, param)
    assert not asked(harness)


def test_an_instance_continues_its_own_blocks_with_the_pools() -> None:
    assert prefix_hit("i", 0, 1, [0, 1, 2, 3, 0, 1]) == PrefixHit("i", 0, 4, 1, 0, 0)
    assert prefix_hit("i", 0, 0, [3, 1, 2]) == PrefixHit("i", 0, 3, 0, 2, 1)
    assert prefix_hit("i", 0, 2, [0, 0]) == PrefixHit("i", 0, 2, 2, 0, 0)


def test_a_pool_has_what_any_of_its_servers_has() -> None:
    assert joined([b"\x01\x00", b"\x02\x02", b"\x01"], 2) == [3, 2]
