import pytest

from loadgen.client.malformed import MALFORMATIONS, malform, malformation_name
from loadgen.client.request import RequestWriter
from loadgen.endpoint import Backend, Endpoint
from loadgen.plan import Turn
from loadgen.selftest.answers import SelftestRefusedError, read_ask
from tests.loadgen.client.events import read_request

CHAT = Endpoint(base_url="http://x", path="/v1/chat/completions", model="m", backend=Backend.CHAT)
COMPLETIONS = Endpoint(base_url="http://x", path="/v1/completions", model="m")
INDICES = range(len(MALFORMATIONS))


@pytest.mark.parametrize("index", INDICES, ids=malformation_name)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_each_is_valid_http_and_refused_as_a_request(index: int, endpoint: Endpoint) -> None:
    writer = RequestWriter(endpoint)
    right = writer.prepare(endpoint.body(Turn(prompt="hello there", output_tokens=4)), "r-1")
    chat = endpoint is CHAT
    headers, body = read_request(right.wire)
    assert read_ask(body, headers["content-type"], chat=chat, model="m").output_tokens == 4

    headers, body = read_request(malform(writer, right, index).wire)
    assert int(headers["content-length"]) == len(body)
    assert headers["x-request-id"] == "r-1"
    with pytest.raises(SelftestRefusedError) as refused:
        read_ask(body, headers["content-type"], chat=chat, model="m")
    assert 400 <= refused.value.status < 500


@pytest.mark.parametrize("index", INDICES, ids=malformation_name)
def test_any_body_can_be_made_wrong(index: int) -> None:
    writer = RequestWriter(COMPLETIONS)
    for body in (b"", b"[1]", b"\xff", b"{}"):
        headers, sent = read_request(malform(writer, writer.prepare(body, "r-1"), index).wire)
        assert int(headers["content-length"]) == len(sent)


def test_names() -> None:
    assert len({name for name, _ in MALFORMATIONS}) == len(MALFORMATIONS) >= 8
    assert malformation_name(len(MALFORMATIONS) + 2) == malformation_name(2) == MALFORMATIONS[2][0]
