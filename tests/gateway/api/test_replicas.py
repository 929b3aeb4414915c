"""`return_replicas`: which instances worked on a request, for those who may see the system."""

from typing import Any

from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from tests.gateway.api.support import Harness, chat, complete, events, post

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
