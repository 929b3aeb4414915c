import pytest

from loadgen.client.reply import ERROR_CHARS, body_error, error_text
from loadgen.client.request import RequestWriter, ServerAddress, parse_address, tls_context
from loadgen.endpoint import Endpoint
from loadgen.errors import UsageError
from tests.loadgen.client.events import read_request


def endpoint(base_url: str = "http://127.0.0.1:8000", **more: object) -> Endpoint:
    return Endpoint(base_url=base_url, path="/v1/completions", model="m", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", ServerAddress("127.0.0.1", 8000, False, "127.0.0.1:8000", "")),
        ("http://example.org", ServerAddress("example.org", 80, False, "example.org", "")),
        ("https://example.org/a/b/", ServerAddress("example.org", 443, True, "example.org", "/a/b")),
        ("https://example.org:443", ServerAddress("example.org", 443, True, "example.org", "")),
        ("http://[::1]:81", ServerAddress("::1", 81, False, "[::1]:81", "")),
    ],
)
def test_addresses(url: str, address: ServerAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://x:port"])
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="address"):
        parse_address(url)


def test_heads_and_bodies() -> None:
    made = RequestWriter(endpoint("http://h:1/base", headers=[("Authorization", "Bearer k"), ("X-Own", "é")])).prepare(
        b"{}", "r-1"
    )
    headers, body = read_request(made.wire)
    assert body == made.body == b"{}"
    assert headers == {
        ":target": "/base/v1/completions", "host": "h:1", "accept": "*/*", "accept-encoding": "identity",
        "authorization": "Bearer k", "x-own": "é", "content-type": "application/json", "content-length": "2",
        "x-request-id": "r-1",
    }  # fmt: skip

    given = [("host", "other"), ("Accept", "text/event-stream"), ("Content-Length", "7"), ("X-Request-Id", "mine")]
    headers, _ = read_request(RequestWriter(endpoint(headers=given)).prepare(b"{}", "r-1").wire)
    assert headers["host"] == "other"
    assert headers["accept"] == "text/event-stream"
    assert headers["content-length"] == "2"
    assert headers["x-request-id"] == "r-1"


def test_tls_only_for_https_and_strict_unless_told_otherwise() -> None:
    assert tls_context(endpoint()) is None
    strict = tls_context(endpoint("https://x"))
    assert strict is not None
    assert strict.check_hostname
    lax = tls_context(endpoint("https://x", verify_tls=False))
    assert lax is not None
    assert not lax.check_hostname


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', '[{"loc":["body"],"msg":"field required"}]'),
        (b'{"message": "slow\\ndown"}', "slow down"),
        (b"<html>\n<h1>502</h1></html>", "<html> <h1>502</h1></html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error": "caf\xe9"}', '{"error": "caf\ufffd"}'),  # Latin-1 labelled as JSON
        (b"[" * 5000 + b"]" * 5000, "[" * ERROR_CHARS),  # what FastAPI makes of a nested body: it shows it again
        (b"", ""),
    ],
)
def test_the_text_of_an_error_answer(body: bytes, shown: str) -> None:
    assert body_error(body) == shown


def test_long_errors_are_cut() -> None:
    assert len(body_error(b"x" * 10_000)) == ERROR_CHARS
    assert len(error_text("x" * 10_000)) == ERROR_CHARS
