"""Commands to groups of ranks: permissions, routing to the group, and the response."""

import pytest
from httpx import Response

from serving.errors import UnavailableError
from serving.gateway.api.admin.cluster_routes import choose_group, expert_router
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.values.group import MoveOneExpert, OperatorOrder, OrderAnswer, ReadLoad, RebalanceExperts
from tests.gateway.api.support import Harness, post

SETTINGS = ApiSettings(
    admin_key_hashes=(hash_api_key("root"),), namespaces=(NamespaceKeys("acme", (hash_api_key("acme-1"),)),)
)
MOVE = {"layer": 0, "expert": 3, "rank": 1}


class Groups:
    """Groups with scripted responses."""

    def __init__(self, served: ServedModel) -> None:
        self.asked: list[tuple[str | None, OperatorOrder]] = []
        self.answer: OrderAnswer | Exception = OrderAnswer(True)
        self.app = Harness(served, SETTINGS).app
        self.app.include_router(expert_router(self._give))

    async def _give(self, group: str | None, order: OperatorOrder) -> OrderAnswer:
        self.asked.append((group, order))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ask(self, path: str, body: object, key: str | None = "root") -> Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return post(self.app, f"/experts/{path}", body, headers=headers)


@pytest.fixture(scope="module")
def groups(served: ServedModel) -> Groups:
    return Groups(served)


@pytest.fixture(autouse=True)
def nothing_asked(groups: Groups) -> None:
    groups.asked.clear()
    groups.answer = OrderAnswer(True)


def test_an_order_goes_to_a_group_and_its_answer_comes_back(groups: Groups) -> None:
    groups.answer = OrderAnswer(True, "moving", detail={"moves": 1})
    answer = groups.ask("move", MOVE)
    assert (answer.status_code, answer.json()) == (200, {"message": "moving", "moves": 1})
    groups.ask("rebalance", {})
    groups.ask("rebalance", {"group": "decode#a", "policy": "global", "dry_run": True})
    groups.ask("load", {"after": 7})
    assert groups.asked == [
        (None, MoveOneExpert(0, 3, 1)),
        (None, RebalanceExperts()),
        ("decode#a", RebalanceExperts("global", dry_run=True)),
        (None, ReadLoad(7)),
    ]


@pytest.mark.parametrize(("path", "body"), [("move", MOVE), ("rebalance", {}), ("load", {})])
def test_orders_are_for_administrators(groups: Groups, path: str, body: object) -> None:
    for key, status in ((None, 401), ("nobody", 401), ("acme-1", 403), ("root", 200)):
        assert groups.ask(path, body, key).status_code == status
        assert len(groups.asked) == (status == 200)


@pytest.mark.parametrize(
    ("came", "status", "kind"),
    [
        (OrderAnswer(False, "there is no such expert", unknown=True), 404, "not_found_error"),
        (OrderAnswer(False, "experts are being moved"), 409, "invalid_request_error"),
        (UnavailableError("the rank is gone"), 503, "server_error"),
    ],
)
def test_a_refusal_says_why(groups: Groups, came: OrderAnswer | Exception, status: int, kind: str) -> None:
    groups.answer = came
    answer = groups.ask("move", MOVE)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, kind)
    assert error["message"] == (came.reason if isinstance(came, OrderAnswer) else str(came))


def test_a_bad_body_goes_to_nobody(groups: Groups) -> None:
    bad = (("move", {"layer": 0, "expert": 3}), ("move", {**MOVE, "rank": -1}), ("rebalance", {"policy": "random"}))
    assert [groups.ask(path, body).status_code for path, body in bad] == [400] * 3
    assert groups.asked == []


def test_a_group_is_the_only_one_or_named() -> None:
    one, two = {"decode#a": "actor a"}, {"decode#a": "actor a", "decode#b": "actor b"}
    assert choose_group(one, None) == choose_group(two, "decode#a") == "actor a"
    for groups, wanted, why in (({}, None, "ep = 2"), (two, None, "several"), (one, "decode#c", "only decode#a")):
        with pytest.raises(RouteError, match=why):
            choose_group(groups, wanted)
