"""Whether the server can be used, and with which model."""

import socket
import threading
import time

import pytest

from loadgen.endpoint import Endpoint
from loadgen.errors import AuthRefused, ServerError, ServerUnreachable, WrongModel
from loadgen.server.probe import check
from tests.loadgen.server.conftest import Answer, Listening, SmallServer


def test_the_model_is_the_one_asked_for_or_the_only_one(server: SmallServer) -> None:
    server.models("tiny", "other", max_model_len=4096, root="models/tiny")
    facts = check(server.endpoint("other"))
    assert (facts.model, facts.models, facts.max_model_len) == ("other", ("tiny", "other"), 4096)
    assert facts.root == "models/tiny"
    assert facts.warnings == ()

    server.models("tiny")
    facts = check(server.endpoint(""))
    assert (facts.model, facts.max_model_len, facts.root) == ("tiny", None, "")
    server.models("tiny", "alias", root="models/tiny", parent=None)
    assert check(server.endpoint("")).model == "tiny"


def test_a_model_must_be_chosen_by_a_right_name(server: SmallServer) -> None:
    server.models("a", "b")
    with pytest.raises(WrongModel, match=r"serves a, b: choose one with --model"):
        check(server.endpoint(""))
    cards = [{"id": "base", "root": "r", "parent": None}, {"id": "lora", "root": "r", "parent": "base"}]
    server.routes["/v1/models"] = Answer(body={"data": cards})
    with pytest.raises(WrongModel, match="choose one"):
        check(server.endpoint(""))
    server.models(*(f"m{i}" for i in range(20)))
    with pytest.raises(WrongModel, match=r"does not serve tiny, but m0, .*m7 and 12 more$"):
        check(server.endpoint("tiny"))
    server.routes.clear()
    facts = check(server.endpoint("tiny"))
    assert facts.model == "tiny"
    assert "was not checked" in facts.warnings[0]
    with pytest.raises(WrongModel, match="give --model"):
        check(server.endpoint(""))


def test_keys(server: SmallServer) -> None:
    server.routes["/v1/models"] = Answer(401, {"error": {"message": "no key"}})
    with pytest.raises(AuthRefused, match=r"401 \(no key\)"):
        check(server.endpoint(), ready_timeout_s=30)  # not waited for: a key does not get better
    server.models("tiny")
    check(server.endpoint(headers=[("Authorization", "Bearer k")]))
    assert server.seen[-1][2]["authorization"] == "Bearer k"


@pytest.mark.parametrize("body", [b"<html>hello</html>", {"data": "none"}, [], {"data": [{"name": "x"}]}, b"\xff"])
def test_something_else_that_answers(server: SmallServer, body: object) -> None:
    server.routes["/v1/models"] = Answer(body=body)
    with pytest.raises(ServerError, match="no list of models"):
        check(server.endpoint())


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}", path="/v1/completions", model="tiny")
    started = time.monotonic()
    with pytest.raises(ServerUnreachable, match="nothing listens"):
        check(endpoint)
    with pytest.raises(ServerUnreachable, match="nothing listens"):
        check(endpoint, ready_timeout_s=0.2)
    assert time.monotonic() - started < 30


def test_a_hanging_server(server: SmallServer) -> None:
    server.routes["/v1/models"] = Answer(delay_s=10.0)
    started = time.monotonic()
    with pytest.raises(ServerUnreachable, match="no answer"):
        check(server.endpoint(), timeout_s=0.2)
    assert time.monotonic() - started < 8


def test_a_server_that_loads_is_waited_for_if_asked(server: SmallServer) -> None:
    answers = iter([Answer(503, {"error": "loading"}), Answer(body={"data": []}), Answer(body={"data": [{"id": "t"}]})])
    server.routes["/v1/models"] = lambda _: next(answers)
    facts = check(server.endpoint(""), ready_timeout_s=30)
    assert facts.model == "t"
    assert facts.waited_s > 0.5

    server.routes["/v1/models"] = Answer(503, {"error": "loading"})
    with pytest.raises(ServerUnreachable, match="loading"):
        check(server.endpoint())
    server.models()
    with pytest.raises(ServerUnreachable, match="serves no model yet"):
        check(server.endpoint())


def test_a_server_that_starts_late_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    small = SmallServer(f"http://127.0.0.1:{port}")
    small.models("tiny")
    started: list[Listening] = []

    def start() -> None:
        time.sleep(0.3)
        started.append(Listening(small, port))
        started[0].serve_forever(0.01)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    try:
        assert check(small.endpoint(), ready_timeout_s=30).model == "tiny"
    finally:
        started[0].shutdown()
        started[0].server_close()
        thread.join()
