"""Orders to groups of ranks: who may give them, to which group they go, and what comes back."""

from collections.abc import Callable
from typing import Any

import pytest

from serving.errors import UnavailableError
from serving.gateway.api.errors import RouteError
from serving.gateway.api.expert_routes import PostOrder, choose_group, expert_router
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.values.operator_order import MoveOneExpert, OperatorOrder, OrderAnswer, ReadLoad, RebalanceExperts
from tests.gateway.api.support import Harness, post

SETTINGS = ApiSettings(
    admin_key_hashes=(hash_api_key("root"),), namespaces=(NamespaceKeys("acme", (hash_api_key("acme-1"),)),)
)
MOVE = {"layer": 0, "expert": 3, "rank": 1}
Ask = Callable[..., Any]


@pytest.fixture
def asked() -> list[tuple[str | None, OperatorOrder]]:
    return []


def router_of(asked: list[tuple[str | None, OperatorOrder]], answer: OrderAnswer | Exception) -> PostOrder:
    async def give(group: str | None, order: OperatorOrder) -> OrderAnswer:
        asked.append((group, order))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return give


def ask(served: ServedModel, give: PostOrder, path: str, body: object, key: str | None = "root") -> Any:
    app = Harness(served, SETTINGS).app
    app.include_router(expert_router(give))
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return post(app, path, body, headers=headers)


def test_an_order_goes_to_a_group_and_its_answer_comes_back(served: ServedModel, asked: list) -> None:
    give = router_of(asked, OrderAnswer(True, "moving", detail={"moves": 1}))
    answer = ask(served, give, "/experts/move", MOVE)
    assert (answer.status_code, answer.json()) == (200, {"message": "moving", "moves": 1})
    ask(served, give, "/experts/rebalance", {})
    ask(served, give, "/experts/rebalance", {"group": "decode#a", "policy": "global", "dry_run": True})
    assert asked == [
        (None, MoveOneExpert(0, 3, 1)),
        (None, RebalanceExperts()),
        ("decode#a", RebalanceExperts("global", dry_run=True)),
    ]
    asked.clear()
    ask(served, give, "/experts/load", {"after": 7})
    assert asked == [(None, ReadLoad(7))]


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("nobody", 401), ("acme-1", 403), ("root", 200)])
@pytest.mark.parametrize(("path", "body"), [("/experts/move", MOVE), ("/experts/rebalance", {}), ("/experts/load", {})])
def test_orders_are_for_administrators(
    served: ServedModel, asked: list, path: str, body: object, key: str | None, status: int
) -> None:
    assert ask(served, router_of(asked, OrderAnswer(True)), path, body, key).status_code == status
    assert len(asked) == (status == 200)


@pytest.mark.parametrize(
    ("came", "status", "kind"),
    [
        (OrderAnswer(False, "there is no such expert", unknown=True), 404, "not_found_error"),
        (OrderAnswer(False, "experts are being moved"), 409, "invalid_request_error"),
        (UnavailableError("the rank is gone"), 503, "server_error"),
    ],
)
def test_a_refusal_says_why(
    served: ServedModel, asked: list, came: OrderAnswer | Exception, status: int, kind: str
) -> None:
    answer = ask(served, router_of(asked, came), "/experts/move", MOVE)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, kind)
    assert error["message"] == (came.reason if isinstance(came, OrderAnswer) else str(came))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/experts/move", {"layer": 0, "expert": 3}),
        ("/experts/move", {**MOVE, "rank": -1}),
        ("/experts/rebalance", {"policy": "random"}),
    ],
)
def test_a_bad_body_goes_to_nobody(served: ServedModel, asked: list, path: str, body: object) -> None:
    assert ask(served, router_of(asked, OrderAnswer(True)), path, body).status_code == 400
    assert asked == []


def test_a_group_is_the_only_one_or_named() -> None:
    one, two = {"decode#a": "actor a"}, {"decode#a": "actor a", "decode#b": "actor b"}
    assert choose_group(one, None) == choose_group(two, "decode#a") == "actor a"
    for groups, wanted, why in (({}, None, "ep = 2"), (two, None, "several"), (one, "decode#c", "only decode#a")):
        with pytest.raises(RouteError, match=why):
            choose_group(groups, wanted)
