"""`/v1/requests`: which time lines a key may see."""

import pytest
from fastapi import FastAPI

from serving.gateway.api.admin.timeline_routes import timeline_router
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from tests.fakes.timelines import KeptTimelines
from tests.gateway.api.support import Harness, bearer, request

SETTINGS = ApiSettings(
    api_key_hashes=(hash_api_key("plain"),),
    admin_key_hashes=(hash_api_key("root"),),
    namespaces=(NamespaceKeys("acme", (hash_api_key("acme"),)), NamespaceKeys("other", (hash_api_key("other"),))),
)


@pytest.fixture(scope="module")
def app(served: ServedModel) -> FastAPI:
    app = Harness(served, SETTINGS).app
    app.include_router(timeline_router(KeptTimelines(("mine", "acme", 1.5), ("theirs", "other", 2.5))))
    return app


@pytest.mark.parametrize(("key", "status"), [("acme", 200), ("root", 200), ("other", 404), ("plain", 404), (None, 401)])
def test_a_tenant_reads_its_own(app: FastAPI, key: str | None, status: int) -> None:
    answer = request(app, "GET", "/v1/requests/mine/timeline", headers=bearer(key))
    assert answer.status_code == status
    if status == 200:
        shown = answer.json()
        assert shown["choices"][0]["parts"] == [
            {"kind": "prefill", "start_s": 0.0, "seconds": 1.5, "replica": "prefill#a", "host": "n0", "tokens": 7}
        ]
    if status == 404:
        unknown = request(app, "GET", "/v1/requests/nothing/timeline", headers=bearer(key))
        assert answer.text.replace("mine", "nothing") == unknown.text, "nobody learns that it is there"


def test_a_list_has_a_tenants_own(app: FastAPI) -> None:
    for key, names in (("acme", ["mine"]), ("root", ["theirs", "mine"]), ("plain", [])):
        rows = request(app, "GET", "/v1/requests?which=slowest&limit=5", headers=bearer(key)).json()["data"]
        assert [row["request_id"] for row in rows] == names
        assert all("choices" not in row and row["tokens"] == 3 for row in rows)
    any_of_its_ids = request(app, "GET", "/v1/requests/x%20mine/timeline", headers=bearer("acme"))
    assert any_of_its_ids.status_code == 200
    for query in ("which=best", "limit=0", "limit=1001", "limit=x"):
        assert request(app, "GET", f"/v1/requests?{query}", headers=bearer("root")).status_code in (400, 422)
