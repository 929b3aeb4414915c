"""The pool over HTTP: visibility, permission to delete, and servers that do not respond."""

from typing import Any

import pytest
from httpx import Response

from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.ids import ReplicaId
from serving.telemetry.stats import InstanceStats, PoolClientStats
from serving.values.pool_view import EMPTY_VIEW, PoolView
from tests.fakes.pool_admin import MIB, FakePoolAdmin, server, two_servers
from tests.gateway.api.support import Harness, bearer, check, post, request

SETTINGS = ApiSettings(
    api_key_hashes=(hash_api_key("plain"),),
    admin_key_hashes=(hash_api_key("root"),),
    namespaces=(NamespaceKeys("acme", (hash_api_key("acme"),)), NamespaceKeys("umbrella", (hash_api_key("umb"),))),
)


@pytest.fixture
def pool() -> FakePoolAdmin:
    return two_servers()


@pytest.fixture
def closed(served: ServedModel, pool: FakePoolAdmin) -> Harness:
    return Harness(served, SETTINGS, pool)


@pytest.fixture
def open_server(served: ServedModel, pool: FakePoolAdmin) -> Harness:
    return Harness(served, None, pool)


def shown(harness: Harness, key: str | None = None) -> dict[str, Any]:
    reply = request(harness.app, "GET", "/pool", headers=bearer(key))
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def test_without_a_pool_all_routes_are_404(harness: Harness) -> None:
    check(request(harness.app, "GET", "/pool"), 404)
    check(request(harness.app, "DELETE", "/pool/namespaces/acme"), 404)
    check(post(harness.app, "/pool/audit", {}), 404, text="without a KV-cache pool")


def test_a_key_is_needed_where_there_are_keys(closed: Harness, pool: FakePoolAdmin) -> None:
    for method, path in (("GET", "/pool"), ("DELETE", "/pool/namespaces/acme"), ("POST", "/pool/audit")):
        for key in (None, "wrong"):
            check(request(closed.app, method, path, headers=bearer(key)), 401, code="invalid_api_key")
    assert not pool.forgotten
    assert not pool.audits


def test_ring_fill_and_hits(open_server: Harness) -> None:
    first, second = shown(open_server)["servers"]
    assert (first["name"], first["state"], first["weight"], first["uptime_s"]) == ("kvcache-a", "active", 1.0, 12.3)
    assert first["dram"] == {"used_bytes": 10 * MIB, "capacity_bytes": 64 * MIB}
    assert first["ssd"] == {"used_bytes": 20 * MIB, "capacity_bytes": 128 * MIB}
    assert (first["entries"], first["hits"], first["misses"]) == (33, {"dram": 30, "ssd": 5}, 65)
    assert first["evictions"] == {"to_ssd": 7, "dropped": 6, "quota": 4, "from_ssd": 3}
    assert first["refused"] == {"full": 2, "quota": 0, "too large": 1}
    assert first["share"] + second["share"] == pytest.approx(1.0)
    assert first["share"] == pytest.approx(2 / 3, abs=0.1), "the other one uses half of its points"


def test_hits_are_what_instances_saw(open_server: Harness) -> None:
    for name, dram in (("prefill#a", 6), ("prefill#b", 1)):
        use = PoolClientStats(blocks={"dram": dram, "ssd": 1, "absent": 2, "lost": 0})
        open_server.metrics.publish_instance(InstanceStats(replica=ReplicaId(name), pool="prefill", pool_use=use))
    open_server.metrics.publish_instance(InstanceStats(replica=ReplicaId("decode#a"), pool="decode"))
    assert shown(open_server)["blocks"] == {"dram": 7, "ssd": 2, "absent": 4, "lost": 0}


def test_a_tenant_sees_its_own_namespace(closed: Harness) -> None:
    seen = {"acme": ["acme"], "umb": ["umbrella"], "plain": ["default"], "root": ["acme", "default", "umbrella"]}
    for key, names in seen.items():
        assert [one["name"] for one in shown(closed, key)["namespaces"]] == names


def test_a_tenant_sees_nothing_of_servers_and_sums(closed: Harness, pool: FakePoolAdmin) -> None:
    use = PoolClientStats(blocks={"dram": 7, "ssd": 1, "absent": 2, "lost": 0})
    closed.metrics.publish_instance(InstanceStats(replica=ReplicaId("prefill#a"), pool="prefill", pool_use=use))
    body = shown(closed, "acme")
    assert (body["servers"], body["blocks"], body["silent"], body["complete"]) == ([], {}, {}, True)
    assert shown(closed, "root")["blocks"]["dram"] == 7
    pool.mute = frozenset({"kvcache-b"})
    body = shown(closed, "acme")
    assert (body["silent"], body["complete"], body["namespaces"][0]["entries"]) == ({}, False, 3)
    assert shown(closed, "root")["silent"]


def test_namespaces_are_summed_over_servers_and_a_silent_one_is_told(open_server: Harness, pool: FakePoolAdmin) -> None:
    acme, default, umbrella = shown(open_server)["namespaces"]
    assert acme == {
        "name": "acme", "dram_bytes": 5 * MIB, "ssd_bytes": 0, "entries": 5, "quota_bytes": 100 * MIB,
        "weight": 1.0, "changed": False, "configured": False,
    }  # fmt: skip
    assert (default["entries"], default["quota_bytes"]) == (1, 0)
    assert (umbrella["entries"], umbrella["quota_bytes"]) == (4, 0)
    pool.mute = frozenset({"kvcache-b"})
    body = shown(open_server)
    assert body["silent"] == {"kvcache-b": "no answer in time"}
    assert [one["name"] for one in body["servers"]] == ["kvcache-a", "kvcache-b"]
    assert body["namespaces"][0]["entries"] == 3


def test_an_empty_pool_and_one_without_facts(served: ServedModel) -> None:
    assert shown(Harness(served, None, FakePoolAdmin(EMPTY_VIEW)))["servers"] == []
    bare = server("kvcache-a")
    bare.record.facts.clear()
    bare.record.facts["namespaces"] = {}
    (row,) = shown(Harness(served, None, FakePoolAdmin(PoolView("v", (bare,)))))["servers"]
    assert row["dram"] == {"used_bytes": 0, "capacity_bytes": 64 * MIB}
    assert row["share"] == 1.0


def test_who_may_forget_what(closed: Harness, pool: FakePoolAdmin) -> None:
    for key, name, status in (
        ("acme", "acme", 200), ("root", "acme", 200), ("plain", "default", 200), ("acme", "umbrella", 403),
        ("acme", "default", 403), ("acme", "no-such", 403), ("plain", "acme", 403), ("root", "no-such", 404),
    ):  # fmt: skip
        pool.forgotten.clear()
        reply = request(closed.app, "DELETE", f"/pool/namespaces/{name}", headers=bearer(key))
        assert reply.status_code == status, reply.text
        assert pool.forgotten == ([name] if status == 200 else [])
        if status == 403:
            check(reply, 403, code="permission_denied")
            assert reply.json()["error"]["type"] == "permission_error"
    pool.pool = PoolView("v", (server("kvcache-a"),))
    empty = request(closed.app, "DELETE", "/pool/namespaces/default", headers=bearer("plain"))
    assert empty.status_code == 200, "a namespace may be empty"


def test_model_weights_are_shown_and_not_forgotten(served: ServedModel) -> None:
    one = server("kvcache-a", acme=1)
    one.record.facts["namespaces"][""] = {"dram_bytes": 7, "ssd_bytes": 0, "entries": 1}
    pool = FakePoolAdmin(PoolView("v", (one,)))
    harness = Harness(served, None, pool)
    assert [row["name"] for row in shown(harness)["namespaces"]] == ["(models)", "acme"]
    for name in ("", "(models)", "%28models%29", "."):
        assert request(harness.app, "DELETE", f"/pool/namespaces/{name}").status_code in (403, 404)
    assert pool.forgotten == []


def test_forgetting_tells_what_went_and_half_a_deletion_is_an_error(open_server: Harness, pool: FakePoolAdmin) -> None:
    body = request(open_server.app, "DELETE", "/pool/namespaces/acme").json()
    assert (body["namespace"], body["bytes"], body["entries"]) == ("acme", 5 * MIB, 5)
    assert set(body["servers"]) == {"kvcache-a", "kvcache-b"}
    pool.mute = frozenset({"kvcache-b"})
    reply = request(open_server.app, "DELETE", "/pool/namespaces/umbrella")
    check(reply, 503, text="kvcache-b")
    assert reply.headers["retry-after"]


def test_without_servers_nothing_is_deleted_or_sound(open_server: Harness, pool: FakePoolAdmin) -> None:
    pool.pool = PoolView("v", (), pool.pool.namespaces)
    reply = request(open_server.app, "DELETE", "/pool/namespaces/acme")
    check(reply, 503)
    assert "nothing was deleted" in reply.json()["error"]["message"]
    assert post(open_server.app, "/pool/audit", {}).json() == {"ok": False, "servers": {}, "silent": {}}
    assert open_server.metrics.audits == {"sound": 0, "unsound": 1}


def test_audits_are_for_administrators(closed: Harness, pool: FakePoolAdmin) -> None:
    for key in ("acme", "plain"):
        check(post(closed.app, "/pool/audit", {}, headers=bearer(key)), 403, code="permission_denied")
    assert pool.audits == []
    assert post(closed.app, "/pool/audit", {"repair": True}, headers=bearer("root")).json()["ok"] is True
    assert post(closed.app, "/pool/audit", {}, headers=bearer("root")).status_code == 200
    assert pool.audits == [True, False]
    assert closed.metrics.audits == {"sound": 2, "unsound": 0}


def test_an_audit_is_good_only_if_all_is(open_server: Harness, pool: FakePoolAdmin) -> None:
    pool.broken = {"kvcache-a": ["entry 12: wrong bytes in memory"]}
    body = post(open_server.app, "/pool/audit", {}).json()
    assert body["ok"] is False
    assert body["servers"]["kvcache-a"]["problems"] == ["entry 12: wrong bytes in memory"]
    pool.broken, pool.mute = {}, frozenset({"kvcache-b"})
    body = post(open_server.app, "/pool/audit", {}).json()
    assert body["ok"] is False
    assert set(body["silent"]) == {"kvcache-b"}


def test_a_page_in_a_browser_cannot_start_an_audit(open_server: Harness, pool: FakePoolAdmin) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        check(post(open_server.app, "/pool/audit", None, content=b"{}", headers={"content-type": kind}), 415)
    check(post(open_server.app, "/pool/audit", None, content=b"{}"), 415, text="not nothing")
    assert pool.audits == []


def set_quota(harness: Harness, name: str, body: dict[str, Any], key: str | None = "root") -> Response:
    return post(harness.app, f"/pool/namespaces/{name}", body, headers=bearer(key))


def test_an_administrator_changes_quota_and_weight(closed: Harness) -> None:
    reply = set_quota(closed, "acme", {"weight": 2.5})
    assert reply.json() == {"namespace": "acme", "quota_bytes": 100 * MIB, "weight": 2.5}
    reply = set_quota(closed, "acme", {"quota_mib": 7})
    assert reply.json() == {"namespace": "acme", "quota_bytes": 7 * MIB, "weight": 2.5}
    (row,) = shown(closed, "acme")["namespaces"]
    assert (row["quota_bytes"], row["weight"], row["changed"], row["configured"]) == (7 * MIB, 2.5, True, True)
    for key in ("acme", "plain"):
        check(set_quota(closed, "acme", {"quota_mib": 0}, key), 403)
    check(set_quota(closed, "no-such", {"quota_mib": 1}), 404)
    check(set_quota(closed, "..%2Fup", {"quota_mib": 1}), 404)
    check(set_quota(closed, "(models)", {"quota_mib": 1}), 404)
    check(set_quota(closed, "acme", {}), 400, "quota_mib")
    check(set_quota(closed, "acme", {"quota_mib": -1}), 400, "quota_mib")
    check(set_quota(closed, "acme", {"weight": 0}), 400, "weight")
    check(set_quota(closed, "acme", {"quota_mb": 1}), 400, "quota_mb", "unknown_parameter", "quota_mib")
    assert set_quota(closed, "default", {"quota_mib": 3}).status_code == 200


def test_a_changed_weight_counts_for_the_next_request(closed: Harness) -> None:
    def weight(key: str) -> float:
        body = {"prompt": "x", "max_tokens": 1}
        assert post(closed.app, "/v1/completions", body, headers=bearer(key)).status_code == 200
        return closed.backend.jobs[-1].weight

    assert weight("acme") == 1.0
    set_quota(closed, "acme", {"weight": 4})
    assert (weight("acme"), weight("umb"), weight("plain")) == (4.0, 1.0, 1.0)


def test_a_namespace_that_is_no_longer_configured_is_listed_and_can_be_removed(
    served: ServedModel, pool: FakePoolAdmin
) -> None:
    only_acme = ApiSettings(admin_key_hashes=(hash_api_key("root"),), namespaces=SETTINGS.namespaces[:1])
    harness = Harness(served, only_acme, pool)
    rows = {row["name"]: row["configured"] for row in shown(harness, "root")["namespaces"]}
    assert rows == {"acme": True, "default": True, "umbrella": False}
    for name in ("umbrella", "acme"):
        reply = request(harness.app, "DELETE", f"/pool/namespaces/{name}", headers=bearer("root"))
        assert reply.status_code == 200
    assert pool.forgotten == ["umbrella", "acme"]
    assert [record.name for record in pool.view().namespaces] == ["acme"], "what is configured stays on the list"
