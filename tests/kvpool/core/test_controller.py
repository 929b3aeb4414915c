"""The controller: when it publishes, its record of namespaces, and the state that a successor takes over."""

import logging
import threading
import time
from dataclasses import replace

import pytest

from serving.errors import PoolError, PoolUnreachableError
from serving.kvpool.core.controller import ROUND_S, ControlSettings, ControlState, EmbeddedStore, PoolController
from serving.kvpool.core.roster import EXPIRY_S
from serving.kvpool.live.controller_host import ControllerHost, open_store
from serving.kvpool.live.redis_store import RedisStore
from serving.values.pool_view import NamespaceRecord, PoolView, ServerState
from tests.kvpool.pool_records import names, server_record
from tests.kvpool.waits import wait_for

ACME, GLOBEX = NamespaceRecord("acme", 100), NamespaceRecord("globex")


def settings(session: str = "one", *namespaces: NamespaceRecord) -> ControlSettings:
    return ControlSettings(session, namespaces=namespaces)


def grown(*servers: str, namespaces: tuple[NamespaceRecord, ...] = ()) -> PoolController:
    """A controller that has received servers' messages for one round, at time 0."""
    controller = PoolController(settings("one", *namespaces))
    for server in servers:
        controller.announce(server_record(server), (), -ROUND_S)
    for server in servers:
        controller.announce(server_record(server), (), 0.0)
    return controller


# ---- when it speaks --------------------------------------------------------------------------------------------------


def test_a_new_controller_listens_for_a_round_before_it_speaks() -> None:
    controller = PoolController(settings())
    assert controller.view(0.0) is None
    assert controller.announce(server_record("a"), (), 10.0).view is None
    assert controller.announce(server_record("b"), (), 10.0 + ROUND_S / 2).view is None
    assert names(controller.announce(server_record("a"), (), 10.0 + ROUND_S).view) == ["a", "b"]
    assert names(controller.view(10.0 + ROUND_S)) == ["a", "b"]


def test_the_first_controller_of_a_start_speaks_at_once() -> None:
    controller = PoolController(replace(settings("one", ACME), founding=True))
    assert view_of(controller).namespaces == (ACME,)
    assert names(controller.announce(server_record("a"), (), 0.0).view) == ["a"]


def test_a_silent_server_leaves_the_view_and_an_empty_pool_is_a_view() -> None:
    controller = grown("a", "b")
    controller.announce(server_record("a"), (), 3.0)
    assert names(controller.view(EXPIRY_S)) == ["a"]
    assert names(controller.view(3.0 + EXPIRY_S)) == []


def test_the_version_changes_with_the_pool_and_not_with_facts() -> None:
    controller = grown("a")
    first = controller.view(0.0)
    second = controller.announce(server_record("a", facts={"hits": 1}, uptime_s=2.0), (), 1.0).view
    assert first is not None
    assert second is not None
    assert first.version == second.version
    assert second.servers[0].record.facts == {"hits": 1}
    third = controller.announce(server_record("a", state=ServerState.DRAINING), (), 1.0).view
    assert third is not None
    assert third.version != first.version


def test_a_withdrawn_server_is_gone_at_once_but_not_its_successor() -> None:
    controller = grown("a")
    controller.announce(server_record("a", "second", uptime_s=0.1), (), 1.0)
    controller.withdraw("a", "first", 1.0)
    assert names(controller.view(1.0)) == ["a"]
    controller.withdraw("a", "second", 1.0)
    assert names(controller.view(1.0)) == []


def test_a_superseded_server_is_told() -> None:
    controller = grown("a")
    assert controller.announce(server_record("a", "second", uptime_s=0.1), (), 5.0).accepted
    assert not controller.announce(server_record("a", "first", uptime_s=6.0), (), 5.5).accepted


# ---- namespaces ------------------------------------------------------------------------------------------------------


def view_of(controller: PoolController, now: float = 0.0) -> PoolView:
    view = controller.view(now)
    assert view is not None
    return view


def test_namespaces_of_the_configuration_are_in_the_view() -> None:
    assert view_of(grown("a", namespaces=(GLOBEX, ACME))).namespaces == (ACME, GLOBEX)


def test_a_quota_is_set_changed_and_deleted() -> None:
    controller = grown("a", namespaces=(ACME,))
    before = view_of(controller)
    controller.set_namespace(NamespaceRecord("acme", 7))
    controller.set_namespace(GLOBEX)
    assert view_of(controller).namespaces == (NamespaceRecord("acme", 7, over=(100, 1.0)), GLOBEX)
    assert view_of(controller).version != before.version
    assert controller.delete_namespace("acme")
    assert not controller.delete_namespace("acme")
    assert view_of(controller).namespaces == (GLOBEX,)


@pytest.mark.parametrize(
    "record", [NamespaceRecord(name, *terms) for name, *terms in (("../up",), ("",), ("a", -1), ("a", 1, 0.0))]
)
def test_what_cannot_be_a_namespace_is_refused(record: NamespaceRecord) -> None:
    with pytest.raises(PoolError, match="is not valid"):
        grown("a").set_namespace(record)


def test_a_successor_learns_changed_quotas_from_the_servers_before_it_looks_at_the_configuration() -> None:
    changed = NamespaceRecord("acme", 7, over=(ACME.quota_bytes, ACME.weight))
    successor = PoolController(settings("one", ACME, GLOBEX))
    successor.announce(server_record("a"), (changed,), 0.0)
    assert view_of(successor, ROUND_S).namespaces == (changed, GLOBEX)
    assert successor.announce(server_record("a"), (NamespaceRecord("acme", 8),), ROUND_S).view == view_of(
        successor, ROUND_S
    ), "what it knows by now is right"


def test_a_controller_of_a_changed_configuration_does_not_take_the_old_one_from_servers() -> None:
    """An upgrade replaces the controller in the same session: servers return what the old file configured."""
    by_hand = NamespaceRecord("globex", 8, over=(1, 1.0))
    successor = PoolController(settings("one", replace(ACME, quota_bytes=55), GLOBEX))
    successor.announce(server_record("a"), (ACME, by_hand), 0.0)
    assert view_of(successor, ROUND_S).namespaces == (replace(ACME, quota_bytes=55), GLOBEX)


def test_a_deleted_namespace_does_not_come_back_from_a_server_that_has_not_heard() -> None:
    controller = grown("a", namespaces=(ACME,))
    view_of(controller)
    controller.delete_namespace("acme")
    controller.announce(server_record("a"), (ACME,), 1.0)
    assert view_of(controller, 1.0).namespaces == ()
    controller.set_namespace(ACME)
    assert view_of(controller, 1.0).namespaces == (ACME,)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_after_a_restart_the_view_is_there_at_once() -> None:
    first = grown("a", "b", namespaces=(ACME,))
    first.set_namespace(NamespaceRecord("acme", 7))
    second = PoolController(settings("one", ACME))
    second.restore(first.state(0.0), 100.0)
    assert view_of(second, 100.0).version == view_of(first).version
    second.announce(server_record("a"), (), 101.0)
    assert names(second.view(100.0 + EXPIRY_S)) == ["a"], "who died meanwhile expires"


def test_facts_are_not_kept() -> None:
    controller = PoolController(settings())
    controller.announce(server_record("a", facts={"hits": 1}), (), 0.0)
    assert controller.state(0.0).servers == (server_record("a"),)


def test_of_an_earlier_start_only_namespaces_are_taken_and_the_configuration_wins() -> None:
    kept = ControlState("earlier", (server_record("ghost"),), (NamespaceRecord("acme", 7), NamespaceRecord("new", 3)))
    controller = PoolController(settings("one", ACME))
    controller.restore(kept, 0.0)
    assert controller.view(0.0) is None
    controller.announce(server_record("a"), (), 0.0)
    view = view_of(controller, ROUND_S)
    assert names(view) == ["a"]
    assert view.namespaces == (ACME, NamespaceRecord("new", 3))


def test_an_operators_change_wins_until_the_configuration_changes() -> None:
    first = grown("a", namespaces=(ACME, GLOBEX))
    first.set_namespace(NamespaceRecord("acme", 7, 3.0))
    first.set_namespace(NamespaceRecord("guest", 5))
    first.set_namespace(NamespaceRecord("default", 6))
    kept = replace(first.state(0.0), session="earlier")

    def after(*configured: NamespaceRecord) -> dict[str, tuple[int, float]]:
        later = PoolController(settings("one", *configured))
        later.restore(kept, 0.0)
        later.announce(server_record("a"), (), 0.0)
        return {one.name: (one.quota_bytes, one.weight) for one in view_of(later, ROUND_S).namespaces}

    others = {"default": (6, 1.0), "globex": (0, 1.0), "guest": (5, 1.0)}
    assert after(ACME, GLOBEX) == {"acme": (7, 3.0), **others}
    assert after(replace(ACME, quota_bytes=101), GLOBEX) == {"acme": (101, 1.0), **others}
    assert after(replace(ACME, weight=2.0), GLOBEX) == {"acme": (100, 2.0), **others}
    assert after(GLOBEX) == {"acme": (7, 3.0), **others}, "one that is configured no longer stays until it is removed"
    assert after(NamespaceRecord("guest", 9)) == {"acme": (7, 3.0), **others, "guest": (9, 1.0)}


def test_back_to_what_the_configuration_says_is_no_change() -> None:
    controller = grown("a", namespaces=(ACME,))
    controller.set_namespace(NamespaceRecord("acme", 7))
    controller.set_namespace(NamespaceRecord("acme", 100))
    assert view_of(controller).namespaces == (ACME,)


def test_a_weight_makes_another_view() -> None:
    controller = grown("a", namespaces=(ACME,))
    before = view_of(controller).version
    controller.set_namespace(replace(ACME, weight=2.0))
    assert view_of(controller).version != before


def test_a_late_restore_changes_nothing_that_is_known() -> None:
    controller = grown("a")
    controller.set_namespace(ACME)
    controller.restore(ControlState("one", (server_record("ghost"),), (NamespaceRecord("acme", 7), GLOBEX)), 0.0)
    assert names(controller.view(0.0)) == ["a"]
    assert view_of(controller).namespaces == (ACME, GLOBEX)


# ---- the host --------------------------------------------------------------------------------------------------------


class MoodyStore(EmbeddedStore):
    """A store that can be unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.saves = 0

    def load(self) -> ControlState | None:
        if self.away:
            raise PoolUnreachableError("away")
        return super().load()

    def save(self, state: ControlState, ttl_s: float) -> None:
        self.saves += 1
        if self.away:
            raise PoolUnreachableError("away")
        super().save(state, ttl_s)


def test_a_store_that_is_away_costs_one_warning_and_gets_everything_later(caplog: pytest.LogCaptureFixture) -> None:
    store = MoodyStore()
    store.save(ControlState("earlier", (), (GLOBEX,)), 1.0)
    store.away = True
    host = ControllerHost(settings("one", ACME), store, save_period_s=0.01)
    try:
        saves = store.saves
        host.announce(server_record("a"), ())
        host.set_namespace(NamespaceRecord("late", 5))
        time.sleep(0.1)
        assert store.saves == saves, "nothing is written before what is kept was read"
        store.away = False
        wait_for(lambda: store.saves > saves + 1, "it saves")
        kept = store.load()
        assert kept is not None
        assert kept.servers == (server_record("a"),)
        assert kept.namespaces == (ACME, GLOBEX, NamespaceRecord("late", 5))
        store.away = True
        saves = store.saves
        wait_for(lambda: store.saves > saves + 3, "it tries on")
        store.away = False
        saves = store.saves
        wait_for(lambda: store.saves > saves + 1, "it saves again")
    finally:
        host.close()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["away" in text for text in warnings] == [True, False, True, False], warnings


def test_a_host_answers_while_its_store_hangs() -> None:
    asked, answer = threading.Event(), threading.Event()

    class SlowStore(EmbeddedStore):
        def save(self, state: ControlState, ttl_s: float) -> None:
            if state.servers:
                asked.set()
                answer.wait(100)

    host = ControllerHost(settings(), SlowStore(), save_period_s=0.01)
    try:
        host.announce(server_record("a"), ())
        assert asked.wait(60)
        begun = time.monotonic()
        host.announce(server_record("b"), ())
        host.set_namespace(ACME)
        assert host.delete_namespace("acme")
        host.withdraw("b", "first")
        assert time.monotonic() - begun < 50
    finally:
        answer.set()
        host.close()


def test_a_host_takes_over_from_its_predecessor() -> None:
    store = EmbeddedStore()
    first = ControllerHost(settings(), store)
    first.announce(server_record("a"), ())
    assert first.view() is None
    first.close()
    store.save(ControlState("one", (server_record("a"),)), 1.0)
    second = ControllerHost(settings(), store)
    try:
        assert names(second.view()) == ["a"]
    finally:
        second.close()


def test_the_store_is_as_the_configuration_says() -> None:
    assert isinstance(open_store(settings()), EmbeddedStore)
    store = open_store(ControlSettings("one", directory="redis://127.0.0.1:1/0"))
    assert isinstance(store, RedisStore)
    store.close()
