"""API keys belong to namespaces: the mapping, and the isolation of equal prompts."""

from typing import Any

import pytest

from serving.errors import AuthenticationError
from serving.gateway.api.admin.cluster_routes import cluster_router
from serving.gateway.api.http.tenant import KeyRing
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.values.pool_view import DEFAULT_NAMESPACE
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import SequenceSpec
from tests.gateway.api.support import Harness, bearer, chat, complete, events, post, request
from tests.telemetry.samples import samples

SETTINGS = ApiSettings(
    api_key_hashes=(hash_api_key("plain"),),
    admin_key_hashes=(hash_api_key("root"), hash_api_key("acme-root")),
    namespaces=(
        NamespaceKeys("acme", tuple(hash_api_key(key) for key in ("acme-1", "acme-2", "acme-root"))),
        NamespaceKeys("umbrella", (hash_api_key("umbrella-1"),)),
    ),
    pool_salt=b"secret",
)


@pytest.fixture(scope="module")
def tenants(served: ServedModel) -> Harness:
    return Harness(served, SETTINGS)


def spec_of(harness: Harness, key: str | None, **fields: object) -> SequenceSpec:
    """What the backend receives for a request with `key`, always with the same prompt."""
    body = {"model": "tiny", "prompt": list(range(4, 40)), **fields}
    answer = post(harness.app, "/v1/completions", body, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return harness.backend.jobs[-1].sequences[0]


@pytest.mark.parametrize(
    ("key", "namespace", "admin"),
    [
        ("acme-1", "acme", False),
        ("acme-2", "acme", False),
        ("acme-root", "acme", True),
        ("umbrella-1", "umbrella", False),
        ("plain", "default", False),
        ("root", "default", True),
    ],
)
def test_a_key_has_a_namespace(key: str, namespace: str, admin: bool) -> None:
    tenant = KeyRing(SETTINGS).identify(f"Bearer {key}")
    assert (tenant.namespace, tenant.admin) == (namespace, admin)
    assert tenant.may_manage(namespace)
    assert tenant.may_manage("another") is admin


async def no_pools() -> dict[str, Any]:
    return {"pools": []}


def test_tenants_do_not_see_the_system(served: ServedModel) -> None:
    """Replicas, processes and load would reveal other tenants."""
    app = Harness(served, SETTINGS).app
    app.include_router(cluster_router(no_pools, lambda: {"groups": []}))
    for path in ("/cluster", "/experts"):
        for key, status in (("root", 200), ("acme-root", 200), ("plain", 403), ("acme-1", 403), (None, 401)):
            answer = request(app, "GET", path, headers=bearer(key))
            assert answer.status_code == status
            if status == 403:
                assert "administrators" in answer.json()["error"]["message"]


def test_who_is_alone_sees_the_system() -> None:
    """Without tenants the key that the banner shows is enough for `cloudmatrix status`."""
    assert KeyRing(ApiSettings(api_key_hashes=(hash_api_key("k"),))).identify("Bearer k").may_see_system
    assert KeyRing(ApiSettings()).identify(None).may_see_system


def test_any_kind_of_key_closes_the_server() -> None:
    for settings in (
        ApiSettings(api_key_hashes=(hash_api_key("k"),)),
        ApiSettings(admin_key_hashes=(hash_api_key("k"),)),
        ApiSettings(namespaces=(NamespaceKeys("acme", (hash_api_key("k"),)),)),
    ):
        keys = KeyRing(settings)
        assert not keys.open
        for header in (None, "Bearer x", "Basic k"):
            with pytest.raises(AuthenticationError):
                keys.identify(header)
            assert not keys.glance(header).admin
        assert keys.glance("Bearer k") == keys.identify("Bearer k")


def test_an_open_server_is_everybodys() -> None:
    keys = KeyRing(ApiSettings(namespaces=(NamespaceKeys("quota-only", ()),)))
    assert keys.open
    for header in (None, "Bearer anything"):
        tenant = keys.identify(header)
        assert (tenant.namespace, tenant.admin) == (DEFAULT_NAMESPACE, True)


def test_every_key_waits_in_a_line_of_its_own_with_its_tenants_weight(served: ServedModel) -> None:
    acme = NamespaceKeys("acme", (hash_api_key("acme-1"), hash_api_key("acme-2")), weight=3.0)
    harness = Harness(served, ApiSettings(api_key_hashes=(hash_api_key("plain"),), namespaces=(acme,)))
    lines = []
    for key in ("acme-1", "acme-2", "plain", "acme-1"):
        spec_of(harness, key)
        job = harness.backend.jobs[-1]
        lines.append((job.key, job.weight))
    assert len({key for key, _ in lines}) == 3
    assert lines[0] == lines[3]
    assert [weight for _, weight in lines] == [3.0, 3.0, 1.0, 3.0]
    assert not any(key in line for key in ("acme-1", "acme-2", "plain") for line, _ in lines), "keys stay secret"
    everybody = Harness(served, ApiSettings())
    spec_of(everybody, None)
    assert everybody.backend.jobs[-1].key == "", "on an open server there is one line"


def test_a_priority_is_passed_on(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings())
    asked: tuple[dict[str, Any], ...] = ({}, {"priority": -3}, {"priority": 7})
    assert [spec_of(harness, None, **fields).priority for fields in asked] == [0, -3, 7]


def test_equal_prompts_of_two_tenants_share_no_block(tenants: Harness) -> None:
    specs = [spec_of(tenants, key) for key in ("acme-1", "acme-2", "umbrella-1", "plain", "root")]
    assert len({spec.prompt for spec in specs}) == 1
    assert [spec.namespace for spec in specs] == ["acme", "acme", "umbrella", "default", "default"]
    chains = [frozenset(prefix_hashes(spec.prompt, 4, spec.salt)) for spec in specs]
    assert chains[0] == chains[1], "one tenant, two keys"
    assert chains[3] == chains[4]
    assert not chains[0] & chains[2]
    assert not chains[0] & chains[3]
    assert not chains[2] & chains[3]


def test_a_cache_salt_parts_a_tenants_own_users(tenants: Harness) -> None:
    plain, ann, bob = (
        spec_of(tenants, "acme-1", **fields) for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"})
    )
    other_ann = spec_of(tenants, "umbrella-1", cache_salt="a")
    assert len({spec.salt for spec in (plain, ann, bob, other_ann)}) == 4
    assert {spec.namespace for spec in (plain, ann, bob)} == {"acme"}
    assert spec_of(tenants, "acme-2", cache_salt="a").salt == ann.salt


def test_salts_depend_on_the_secret(served: ServedModel, tenants: Harness) -> None:
    other = Harness(served, ApiSettings(api_key_hashes=SETTINGS.api_key_hashes, pool_salt=b"other"))
    assert spec_of(other, "plain").salt != spec_of(tenants, "plain").salt


def test_a_namespace_cannot_be_chosen_by_a_salt(tenants: Harness) -> None:
    target = spec_of(tenants, "umbrella-1").salt
    for guess in (target.hex(), "umbrella", target.decode("latin-1")):
        assert spec_of(tenants, "acme-1", cache_salt=guess).salt != target


def test_chat_is_booked_under_the_tenant_too(tenants: Harness) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 2}
    assert post(tenants.app, "/v1/chat/completions", body, headers=bearer("umbrella-1")).status_code == 200
    assert {s.namespace for s in tenants.backend.jobs[-1].sequences} == {"umbrella"}


def test_secrets_do_not_show() -> None:
    assert "secret" not in repr(SETTINGS)


def test_series_that_name_tenants_are_for_administrators(served: ServedModel) -> None:
    harness = Harness(served, SETTINGS)
    for key in ("acme-1", "umbrella-1"):
        spec_of(harness, key)
    for stranger in (None, "wrong", "plain", "acme-1"):
        reply = request(harness.app, "GET", "/metrics", headers=bearer(stranger))
        assert reply.status_code == 200
        assert "acme" not in reply.text
        assert "umbrella" not in reply.text
        assert "vllm:prompt_tokens_total" in reply.text
    text = request(harness.app, "GET", "/metrics", headers=bearer("root")).text
    prompt = 'cloudmatrix:namespace_prompt_tokens_total{engine="0",model_name="tiny",namespace="acme"} 36.0'
    assert prompt in text
    assert text.count("# TYPE vllm:prompt_tokens_total") == 1


def test_an_open_server_shows_them_to_all(served: ServedModel) -> None:
    harness = Harness(served)
    spec_of(harness, None)
    assert 'namespace="default"' in request(harness.app, "GET", "/metrics").text
    assert not any("namespace" in name for name, _ in samples(harness.metrics))


TOLD = ["prefill#a", "decode#b"]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def test_whole_answers_and_usage_chunks_tell_when_asked(harness: Harness) -> None:
    for ask in (chat, complete):
        assert ask(harness.app, return_replicas=True).json()["replicas"] == TOLD
        assert "replicas" not in ask(harness.app).json()
        *chunks, usage, end = events(ask(harness.app, return_replicas=True, **USAGE).text)
        assert usage["replicas"] == TOLD
        assert end == "[DONE]"
        assert not any("replicas" in chunk for chunk in chunks)
        assert "replicas" not in ask(harness.app, **USAGE).text


def test_tenants_do_not_see_each_others_system(served: ServedModel) -> None:
    keys = (hash_api_key("root"),)
    tenants = (NamespaceKeys("acme", (hash_api_key("acme"),)),)

    def told(settings: ApiSettings, key: str) -> Any:
        body = {"prompt": "The dog", "return_replicas": True}
        answer = post(
            Harness(served, settings).app, "/v1/completions", body, headers={"authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 200
        return answer.json().get("replicas")

    assert told(ApiSettings(api_key_hashes=keys), "root") == TOLD, "nobody else is there"
    assert told(ApiSettings(admin_key_hashes=keys, namespaces=tenants), "root") == TOLD
    assert told(ApiSettings(admin_key_hashes=keys, namespaces=tenants), "acme") is None
