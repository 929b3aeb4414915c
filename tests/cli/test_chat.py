"""`cloudmatrix chat`: one response, a conversation, Ctrl-C, and user errors."""

import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from serving.cli import main
from serving.client.conversation import ChatConversation, ChatReply
from serving.client.http_client import GATEWAY, RefusedError, ask_events
from serving.errors import EngineError, SilentError, UnavailableError
from serving.gateway.api.settings import ApiSettings, hash_api_key
from serving.values.sequence import PoolUse
from tests.cli.gateway import answering, scripted_gateway
from tests.gateway.api.support import Harness

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, str]]:
    with scripted_gateway(tmp_path_factory.mktemp("model")) as running:
        yield running


@pytest.fixture
def harness(gateway: tuple[Harness, str]) -> Harness:
    harness = gateway[0].renewed()
    harness.script_of = lambda _: harness.say("Once upon a time", cached_tokens=4, pool=PoolUse(3))
    return harness


@pytest.fixture
def url(gateway: tuple[Harness, str]) -> str:
    return gateway[1]


def prompts(harness: Harness) -> list[str]:
    """Prompts that the backend was given, as text."""
    tokenizer = harness.model.tokenizer
    return [tokenizer.decode(job.sequences[0].prompt, skip_special_tokens=False) for job in harness.backend.jobs]


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Type these lines at a terminal, as a person would; Ctrl-C comes last."""
    typed = iter(lines)

    def read(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)


# ---- one answer ------------------------------------------------------------------------------------------------------


def test_one_answer_and_its_figures(harness: Harness, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["Tell me", "--system", "Be brief.", "--max-tokens", "50", "--temperature", "0", "--seed", "7"]
    assert main(["chat", *asked, "--url", url]) == 0
    told = capsys.readouterr()
    assert told.out == "Once upon a time\n"
    tokens = len(harness.script_of(harness.backend.jobs[0].sequences[0]).tokens)
    assert re.fullmatch(
        rf"\d+ prompt tokens \(4 cached, 3 of them pulled from the pool\), {tokens} output tokens, first after \d+ ms, "
        r"\d+ tokens/s, prefill#a → decode#b\n",
        told.err,
    )
    (job,) = harness.backend.jobs
    sampling = job.sequences[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (50, 0, 7)
    assert prompts(harness) == ["<|bos|><|user|>system: Be brief.<|user|>user: Tell me<|assistant|>"]


def test_the_message_may_come_from_a_pipe(
    harness: Harness, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Tell me"))
    assert main(["chat", "--url", url]) == 0
    assert capsys.readouterr().out == "Once upon a time\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert main(["chat", "--url", url]) == 2
    assert "the message is empty" in capsys.readouterr().err


@pytest.mark.usefixtures("harness")
def test_mistakes_are_told_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert main(["chat", "hi", "--url", f"127.0.0.1:{port}"]) == 3
    assert re.fullmatch(
        r"cloudmatrix: nothing listens at \S+: start a server there \(`cloudmatrix serve`\), or give .* --url\n",
        capsys.readouterr().err,
    )
    assert main(["chat", "hi", "--url", url, "--temperature", "9"]) == 2
    assert "answered 400: " in capsys.readouterr().err
    with answering(lambda _: (200, {"pools": []})) as empty:
        assert main(["chat", "hi", "--url", empty]) == 3
    assert "serves no model" in capsys.readouterr().err


def test_a_key_where_one_is_wanted(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ApiSettings(api_key_hashes=(hash_api_key("one"),))
    with scripted_gateway(tmp_path_factory.mktemp("closed"), settings) as (_, url):
        assert main(["chat", "hi", "--url", url]) == 3
        assert "give its key with --api-key" in capsys.readouterr().err
        assert main(["chat", "hi", "--url", url, "--api-key", "one"]) == 0
        assert capsys.readouterr().out == "Once upon a time\n"


# ---- a conversation --------------------------------------------------------------------------------------------------


def test_a_conversation_is_kept_until_it_is_cleared(
    harness: Harness, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "one", "", "/help", "two", "/clear", "three", "/exit", "never asked")
    assert main(["chat", "--url", url]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"tiny at {url}; /help lists the commands")
    assert "/clear   forget the conversation so far" in told
    assert told.count("Once upon a time\n") == told.count("prefill#a → decode#b") == 3
    first, second, third = prompts(harness)
    assert second == f"{first}Once upon a time<|eos|><|user|>user: two<|assistant|>"
    assert third == "<|bos|><|user|>user: three<|assistant|>"


def test_a_question_that_fails_leaves_no_turn(
    harness: Harness, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = iter([harness.say("", fail_after=0, error=EngineError("broken")), harness.say("Once")])
    harness.script_of = lambda _: next(scripts)
    type_lines(monkeypatch, "one", "two")
    assert main(["chat", "--url", url]) == 0
    told = capsys.readouterr()
    assert "cloudmatrix: " in told.err
    assert "Once" in told.out
    assert prompts(harness)[1] == "<|bos|><|user|>user: two<|assistant|>"


class Terminal:
    """`cloudmatrix chat` at a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, "-m", "serving.cli", "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def wait(self, text: str) -> None:
        """Read until this text arrives, and drop the output up to it."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self.ours)


def test_keys_at_a_terminal(harness: Harness, url: str) -> None:
    """Ctrl-C stops the response and frees its resources, Ctrl-D exits; a model's text cannot control the terminal."""
    scripts = iter([harness.say("Once upon a time " * 9, hang_after=20), harness.say("a \x1b[31mtree")])
    harness.script_of = lambda _: next(scripts)
    terminal = Terminal("--url", url)
    try:
        terminal.wait("> ")
        terminal.type("one\n")
        terminal.wait("Once")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait("stopped; Ctrl-C again quits")
        terminal.wait("> ")
        end = time.monotonic() + PATIENCE_S
        while not harness.backend.generations[-1].cancelled:
            assert time.monotonic() < end, "the request goes on"
            time.sleep(0.01)
        terminal.type("two\n")
        terminal.wait("a [31mtree")
        assert prompts(harness)[1].endswith("<|eos|><|user|>user: two<|assistant|>")
        assert "<|assistant|>Once" in prompts(harness)[1], "a stopped answer is kept as far as it has come"
        terminal.wait("> ")
        terminal.type("\x04")
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.close()


# ---- figures and streams ---------------------------------------------------------------------------------------------


def test_figures_of_what_is_unusual() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}
    reply = ChatReply(10.0, first=10.5, last=12.5, usage=usage)
    plain = "3 prompt tokens (0 cached), 9 output tokens, first after 500 ms, 4 tokens/s"
    assert reply.figures() == plain
    odd = replace(reply, usage={**usage, "resumptions": 2}, finish="length", placeholder=True)
    assert odd.figures() == (
        f"{plain}, resumed 2 times, stopped at the token limit, placeholder text: the NPUs are simulated"
    )
    assert ChatReply(0.0).figures() == "", "stopped before it was told"
    assert ChatReply(0.0).take({"choices": [], "system_fingerprint": "fp_0-placeholder-tokens"}, 1.0) == ""


@contextmanager
def saying(said: bytes) -> Iterator[str]:
    """A server that answers one request with these bytes; if they end with a comment, it keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                read_question(connection)  # bytes left unread would break the connection when it is closed
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + said)
                if said.endswith(b": stays\n\n"):
                    connection.settimeout(PATIENCE_S)
                    connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def read_question(connection: socket.socket) -> None:
    """Read a whole request."""
    with connection.makefile("rb") as asked:
        length = 0
        while line := asked.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        asked.read(length)


CHUNK = b'data: {"choices": []}\n\n'


@pytest.mark.parametrize(
    ("said", "kind", "why", "silence_s"),
    [
        (CHUNK, UnavailableError, "has gone before the answer was complete", PATIENCE_S),
        (CHUNK + b"data: {]\n\n", UnavailableError, "cannot be read", PATIENCE_S),
        (CHUNK + b'data: {"error": {"message": "it broke"}}\n\n', RefusedError, "it broke", PATIENCE_S),
        pytest.param(
            CHUNK + b": stays\n\n", SilentError, r"has said nothing for 0\.2 s", 0.2, marks=pytest.mark.real_time
        ),
    ],
)
def test_a_stream_that_does_not_end_well(said: bytes, kind: type[Exception], why: str, silence_s: float) -> None:
    with saying(said) as url:
        events = ask_events(GATEWAY, url, "/v1/chat/completions", None, {}, silence_s=silence_s)
        assert next(events) == {"choices": []}
        with pytest.raises(kind, match=why):
            next(events)


def test_a_stream_of_something_else_is_told_in_one_line() -> None:
    with saying(b'data: {"x": 1}\n\n') as url:
        conversation = ChatConversation(url, None, "tiny", None, {})
        with pytest.raises(UnavailableError, match="answers in another form"):
            list(conversation.ask("hi"))
