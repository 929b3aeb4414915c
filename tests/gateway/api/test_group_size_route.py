"""Sizes of groups over HTTP: permissions, refusals, and the command line's messages."""

import pytest

from serving.gateway.api.admin.cluster_routes import OrderedGroup, group_size_router
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from serving.values.group import DrainRank, OrderAnswer, RankRole, ResizeGroup, SizeOrder, SwitchRole
from tests.gateway.api.support import Harness, post

SETTINGS = ApiSettings(api_key_hashes=(hash_api_key("plain"),), admin_key_hashes=(hash_api_key("root"),))
GROUPS = [OrderedGroup(f"decode#{name}", "decode", f"actor-{name}") for name in "ab"]
DONE = OrderAnswer(True, "done", detail={"before": 2, "ranks": 4})


class Shells:
    """Shells with scripted responses."""

    def __init__(self, served: ServedModel) -> None:
        self.asked: list[tuple[str, SizeOrder]] = []
        self.answer = DONE
        self.app = Harness(served, SETTINGS).app
        self.app.include_router(group_size_router(lambda: GROUPS, self._post))

    async def _post(self, actor: str, order: SizeOrder) -> OrderAnswer:
        self.asked.append((actor, order))
        return self.answer

    def ask(self, path: str, body: dict[str, object], key: str = "root") -> tuple[int, dict[str, object]]:
        answer = post(self.app, path, body, headers={"authorization": f"Bearer {key}"})
        return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def application(served: ServedModel) -> Shells:
    return Shells(served)


@pytest.fixture
def shells(application: Shells) -> Shells:
    application.asked.clear()
    application.answer = DONE
    return application


def test_every_group_of_a_pool_is_resized(shells: Shells) -> None:
    status, answer = shells.ask("/experts/resize", {"pool": "decode", "ranks": 4})
    row = {"pool": "decode", "message": "done", "before": 2, "ranks": 4}
    assert (status, answer) == (200, {"groups": [{"group": f"decode#{name}", **row} for name in "ab"]})
    assert shells.asked == [("actor-a", ResizeGroup(4)), ("actor-b", ResizeGroup(4))]


def test_a_rank_is_drained_by_its_name(shells: Shells) -> None:
    assert shells.ask("/experts/drain", {"rank": "decode#b.r1"})[0] == 200
    assert shells.asked == [("actor-b", DrainRank(1))]


def test_each_side_of_a_group_is_resized_and_ranks_change_their_role(shells: Shells) -> None:
    assert shells.ask("/experts/resize", {"pool": "decode", "expert_ranks": 2})[0] == 200
    assert shells.asked == [("actor-a", ResizeGroup(None, 2)), ("actor-b", ResizeGroup(None, 2))]
    shells.asked.clear()
    assert shells.ask("/experts/switch", {"rank": "decode#b.r1", "role": "experts"})[0] == 200
    assert shells.asked == [("actor-b", SwitchRole(1, RankRole.EXPERTS))]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("resize", {"pool": "prefill", "ranks": 2}, 404),
        ("drain", {"rank": "decode#c.r1"}, 404),
        ("drain", {"rank": "decode#a.rx"}, 404),
        ("drain", {"rank": "decode#a"}, 404),
        ("resize", {"pool": "decode", "ranks": 0}, 400),
        ("resize", {"pool": "decode"}, 400),
        ("switch", {"rank": "decode#c.r1", "role": "experts"}, 404),
        ("switch", {"rank": "decode#a.r1", "role": "both"}, 400),
        ("resize", {"ranks": 2}, 400),
    ],
)
def test_what_is_not_there_or_has_no_sense(shells: Shells, path: str, body: dict[str, object], status: int) -> None:
    assert shells.ask(f"/experts/{path}", body)[0] == status
    assert not shells.asked


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (None, 409, "conflict"),
        ("no_room", 409, "no_room"),
        ("invalid", 400, "invalid_value"),
        ("unavailable", 503, "service_unavailable"),
    ],
)
def test_refusals(shells: Shells, kind: str, status: int, code: str) -> None:
    shells.answer = OrderAnswer(False, "4 ranks do not fit, 3 would", detail={"kind": kind})
    got, answer = shells.ask("/experts/resize", {"pool": "decode", "ranks": 4})
    error = answer["error"]
    assert isinstance(error, dict)
    assert (got, error["code"], error["message"]) == (status, code, "4 ranks do not fit, 3 would")
    assert len(shells.asked) == 1, "the first refusal ends it"


@pytest.mark.parametrize(
    ("path", "body"), [("resize", {"pool": "decode", "ranks": 3}), ("drain", {"rank": "decode#a.r0"})]
)
def test_ranks_are_for_administrators(shells: Shells, path: str, body: dict[str, object]) -> None:
    assert shells.ask(f"/experts/{path}", body, key="plain")[0] == 403
    assert shells.ask(f"/experts/{path}", body, key="wrong")[0] == 401
