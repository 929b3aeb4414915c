import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from loadgen.client import Exchange, Failure, LoadClient
from loadgen.client.connection import limit_of
from loadgen.plan import Behaviour, Conduct
from loadgen.record import RequestOutcome
from tests.loadgen.client.ended import digest
from tests.loadgen.client.events import CHAT, DONE, chunked, frame, plain, read_request, text
from tests.loadgen.client.scripted import HANG, READ, client_of, on_both_loops, scripted

HEAD = chunked()[: chunked().index(b"\r\n\r\n") + 4]


async def ask(client: LoadClient, **behaviour: object) -> Exchange:
    request = client.prepare(b'{"model":"m","prompt":"p","max_tokens":4}', "r-1")
    return await client.exchange(request, Behaviour(**behaviour))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("behaviour", "after_s", "failure"),
    [
        (Behaviour(), 9.0, Failure.DEADLINE),
        (Behaviour(leave_after_s=1.0, give_up_after_s=1.0), 9.0, Failure.DEADLINE),
        (Behaviour(conduct=Conduct.DISCONNECT, leave_after_s=2.0), 2.0, Failure.LEFT),
        (Behaviour(conduct=Conduct.DISCONNECT, leave_after_s=20.0), 9.0, Failure.DEADLINE),
        (Behaviour(conduct=Conduct.DISCONNECT, leave_after_chunks=1), 9.0, Failure.DEADLINE),
        (Behaviour(conduct=Conduct.TIMEOUT, give_up_after_s=3.0), 3.0, Failure.LEFT),
        (Behaviour(conduct=Conduct.SLOW_READER, give_up_after_s=3.0), 9.0, Failure.DEADLINE),
    ],
)
def test_the_earlier_limit_counts(behaviour: Behaviour, after_s: float, failure: Failure) -> None:
    limit = limit_of(behaviour, 9.0)
    assert (limit.after_s, limit.failure) == (after_s, failure)


@on_both_loops
async def test_leaving_and_giving_up() -> None:
    steps = [step for number in range(8) for step in (frame(text(f" {number}")), 0.01)]
    async with scripted([READ, HEAD, frame(text("")), 0.01, *steps, HANG]) as server, client_of(server.url) as client:
        made = await ask(client, conduct=Conduct.DISCONNECT, leave_after_chunks=3, leave_after_s=30.0)
        await asyncio.wait_for(server.left.wait(), 30)
    found = digest(made)
    assert (found.outcome, found.text) == (RequestOutcome.CANCELLED, " 0 1 2")
    assert found.error == "left on purpose after 3 chunks"

    async with scripted([READ, HEAD, frame(text("a")), HANG]) as server, client_of(server.url) as client:
        made = await ask(client, conduct=Conduct.DISCONNECT, leave_after_s=0.05)
        await asyncio.wait_for(server.left.wait(), 30)
    assert digest(made).outcome is RequestOutcome.CANCELLED
    assert made.error == "left on purpose after 0.05 s"

    async with scripted([READ, HANG]) as server, client_of(server.url) as client:
        made = await ask(client, conduct=Conduct.TIMEOUT, give_up_after_s=0.05)
        await asyncio.wait_for(server.left.wait(), 30)
    assert digest(made).outcome is RequestOutcome.CANCELLED
    async with scripted([READ, chunked(*CHAT), HANG]) as server, client_of(server.url) as client:
        made = await ask(client, conduct=Conduct.DISCONNECT, leave_after_chunks=50)
    assert digest(made).outcome is RequestOutcome.OK


@on_both_loops
async def test_a_slow_reader_takes_its_time_and_a_connection_of_its_own() -> None:
    events = [frame(text(f" {number}")) for number in range(200)]
    answer = b"".join([HEAD, *events, frame(text("", finish="stop")), frame(DONE), b"0\r\n\r\n"])
    rate = len(answer) / 0.4
    async with scripted([READ, chunked(*CHAT), HANG], [READ, answer, HANG]) as server, client_of(server.url) as client:
        await ask(client)
        made = await ask(client, conduct=Conduct.SLOW_READER, read_bytes_per_s=rate)
        assert server.connections == 2
    found = digest(made)
    assert found.outcome is RequestOutcome.OK
    assert made.ended_s is not None
    assert made.ended_s - made.started_s >= 0.2


@on_both_loops
async def test_a_malformed_request_is_sent_malformed_and_its_connection_not_kept() -> None:
    refusal = plain(b'{"error": {"message": "bad"}}', 400)
    async with scripted([READ, refusal, HANG]) as server, client_of(server.url) as client:
        made = await ask(client, conduct=Conduct.MALFORMED, malformation=6)
        await ask(client)
        assert server.connections == 2
        headers, body = read_request(server.requests[0])
    assert headers["x-request-id"] == "r-1"
    assert b'"max_tokens":-1' in body
    assert digest(made).outcome is RequestOutcome.REFUSED_AS_MEANT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed one for 127.0.0.1, with its key in the same file."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "the TLS tests need the openssl command"
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


def context_with(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@on_both_loops
async def test_tls_with_an_unknown_certificate_needs_to_be_allowed(certificate: Path) -> None:
    async with scripted([READ, chunked(*CHAT), READ, chunked(*CHAT), HANG], tls=context_with(certificate)) as server:
        async with client_of(server.url) as client:
            refused = await ask(client)
        assert refused.failure is Failure.CONNECT
        assert "certificate" in refused.error
        assert "--insecure" in refused.error
        async with client_of(server.url, verify_tls=False) as client:
            assert [digest(await ask(client)).outcome for _ in range(2)] == [RequestOutcome.OK, RequestOutcome.OK]
            assert client.meter.connections == 1


@on_both_loops
async def test_tls_against_a_server_that_speaks_none() -> None:
    async with scripted([b"HTTP/1.1 400 Bad Request\r\n\r\n", HANG]) as server:
        async with client_of(server.url.replace("http", "https")) as client:
            made = await ask(client)
    assert made.failure is Failure.CONNECT
    assert "is it https?" in made.error
