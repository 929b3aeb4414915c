"""Counting by the server's tokenizer, in its several forms."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from loadgen.errors import AuthRefused, ServerError, ServerUnreachable
from loadgen.plan import PromptMessage, Role
from loadgen.server.tokenize import ServerTokenCounter, connect
from loadgen.workload.ports import TokenCounter
from tests.loadgen.server.conftest import Answer, Route, SmallServer

Open = Callable[..., ServerTokenCounter]


def tokenizer(*, strings: bool = True, ids: bool = True, strict: bool = False) -> Route:
    """A /tokenize of one token per word, with a begin-of-text token; the template adds three tokens a message."""

    def route(fields: dict) -> Answer:
        if strict and "return_token_strs" in fields:
            return Answer(400, {"error": {"message": "unknown field return_token_strs"}})
        if "messages" in fields:
            words = [w for message in fields["messages"] for w in ["<s>", *message["content"].split(), "</s>", "\n"]]
        else:
            words = ["<s>"] * fields.get("add_special_tokens", True) + fields["prompt"].split()
        answer: dict = {"count": len(words), "max_model_len": 100}
        if ids:
            answer["tokens"] = [len(word) for word in words]
        if strings and fields.get("return_token_strs"):
            answer["token_strs"] = words
        return Answer(body=answer)

    return route


@pytest.fixture
def opened(server: SmallServer) -> Iterator[Open]:
    """`connect`, or without a proof the counter itself; closed at the end."""
    with ExitStack() as stack:

        def open_counter(*, proved: bool = True) -> ServerTokenCounter:
            counter = connect(server.endpoint("tiny")) if proved else ServerTokenCounter(server.endpoint("tiny"))
            assert counter is not None
            return stack.enter_context(closing(counter))

        yield open_counter


def test_counts_pieces_and_numbers_in_one_call(server: SmallServer, opened: Open) -> None:
    server.routes["/tokenize"] = tokenizer()
    counter: TokenCounter = opened()
    calls = len(server.seen)
    assert counter.count("a bb ccc") == 4
    assert counter.pieces("a bb ccc") == ["<s>", "a", "bb", "ccc"]
    assert counter.ids("a bb ccc") == [3, 1, 2, 3]
    assert len(server.seen) == calls + 1
    assert counter.count("a") == 2
    assert server.seen[-1][3]["model"] == "tiny"
    assert server.connections == 1


def test_what_a_server_does_not_do_is_not_asked_again_or_believed(server: SmallServer, opened: Open) -> None:
    server.routes["/tokenize"] = tokenizer(strings=False, ids=False)
    counter = opened()
    assert (counter.count("a b"), counter.pieces("a b"), counter.ids("a b")) == (3, None, None)
    server.routes["/tokenize"] = tokenizer(strict=True)
    counter = opened()
    calls = len(server.seen)
    assert (counter.count("a b"), counter.pieces("a b")) == (3, None)
    assert len(server.seen) == calls + 1  # the option is not tried again
    server.routes["/tokenize"] = Answer(body={"count": 3, "tokens": [1, 2], "token_strs": ["a"]})
    counter = opened(proved=False)
    assert (counter.count("x"), counter.pieces("x"), counter.ids("x")) == (3, None, None)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404, {"detail": "Not Found"}), Answer(405), Answer(501),
        Answer(422, {"error": "missing field inputs"}), Answer(body={"tokens": []}), Answer(body={"count": 0}),
        Answer(body=b"hello"), Answer(body=[{"id": 1}]),
    ],
)  # fmt: skip
def test_no_tokenizer_there(server: SmallServer, opened: Open, answer: Answer) -> None:
    server.routes["/tokenize"] = answer
    assert connect(server.endpoint()) is None
    with pytest.raises(ServerError, match="does not count"):
        opened(proved=False).count("x")


def test_errors_of_the_server(server: SmallServer) -> None:
    server.routes["/tokenize"] = Answer(401)
    with pytest.raises(AuthRefused):
        connect(server.endpoint())
    server.routes["/tokenize"] = Answer(500)
    with pytest.raises(ServerUnreachable, match="500"):
        connect(server.endpoint())
    server.routes["/tokenize"] = Answer(delay_s=10.0)
    with pytest.raises(ServerUnreachable, match="no answer"):
        connect(server.endpoint(), timeout_s=0.2)


def test_chat_template(server: SmallServer, opened: Open) -> None:
    server.routes["/tokenize"] = tokenizer()
    counter = opened(proved=False)
    assert counter.chat_overhead() == 3
    messages = [PromptMessage(Role.SYSTEM, "be brief"), PromptMessage(Role.USER, "hello")]
    assert counter.count_chat(messages) == 9
    assert server.seen[-1][3]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    server.routes["/tokenize"] = lambda fields: Answer(400) if "messages" in fields else Answer(body={"count": 4})
    assert counter.chat_overhead() is None
