"""The table in the control store: two simultaneous claims get different numbers, and restarts keep them."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from serving.cluster import node_numbers
from serving.cluster.node_numbers import (
    KEPT_VERSIONS,
    PREFIX,
    NodeClaim,
    NodeNumbers,
    disk_marks,
    number_nodes,
    own_number,
)
from serving.errors import SilentError, UnavailableError
from serving.ids import NodeId
from tests.cluster.gcs_fake import FakeGcs
from tests.cluster.node_case import RacedGcs, listed, numbers

A, B, C = (NodeId(name) for name in "abc")


def test_numbers_outlive_who_asked() -> None:
    gcs = FakeGcs()
    assert numbers(gcs).read().nodes == ()
    first = numbers(gcs).add([NodeClaim(A), NodeClaim(B, 2)], {A, B})
    assert [first.number(node) for node in (A, B)] == [0, 1]
    assert numbers(gcs).read() == first
    again = numbers(gcs).add([NodeClaim(B, 2, wish=9)], {A, B})
    assert again == first, "given out once and kept"


@pytest.mark.parametrize("meanwhile", [1, KEPT_VERSIONS + 3])
def test_two_that_ask_at_once_get_different_numbers(meanwhile: int) -> None:
    """Even if many claims were faster, so that the version which the slow one tries was deleted long ago."""
    gcs = RacedGcs()
    fast, slow = numbers(gcs), numbers(gcs)

    def race() -> None:
        for index in range(meanwhile):
            node = NodeId(f"fast-{index}")
            fast.add([NodeClaim(node)], everybody)

    everybody = {A, *(NodeId(f"fast-{index}") for index in range(meanwhile))}
    gcs.before_put = race
    table = slow.add([NodeClaim(A)], everybody)
    table.check()
    assert table.number(A) == meanwhile
    assert len(table.nodes) == meanwhile + 1
    assert numbers(gcs).read() == table


def test_old_versions_go() -> None:
    gcs = FakeGcs()
    for index in range(20):
        numbers(gcs).add([NodeClaim(NodeId(f"n{index}"))], {NodeId(f"n{index}")})
    assert len(gcs.kept) == KEPT_VERSIONS
    assert all(key.decode().startswith(PREFIX) for _, key in gcs.kept)


def test_labels_of_their_own_are_numbered_together_and_equal_ones_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [listed("a", "2"), listed("b", npus=20), listed("c", "4"), listed("d", alive=False)]
    table = number_nodes(numbers(), nodes, {B})
    assert [table.number(node) for node in (A, B, C)] == [2, 5, 4]
    assert [one.hosts for one in table.nodes if one.node == B] == [3]
    equal = [listed("a", "1"), listed("b", "1", address="10.0.0.2")]
    gcs = FakeGcs()
    with caplog.at_level(logging.WARNING):
        assert number_nodes(numbers(gcs), equal, {A}).number(B) is None, "it has not asked"
        table = number_nodes(numbers(gcs), equal, {B})
    assert [table.number(node) for node in (A, B)] == [1, 0]
    assert "several Ray nodes have the label cloudmatrix-node=1" in caplog.text
    assert number_nodes(numbers(), [listed("a", "rack-1")], {A}).number(A) == 0, "a label that is no number"


def test_a_process_asks_for_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, looks = [listed("a", "0"), listed("b", "0")], list[int]()
    context = SimpleNamespace(get_node_id=lambda: "b")

    def look() -> list[dict[str, Any]]:
        looks.append(1)
        return rows

    fake = {"get_runtime_context": lambda: context, "nodes": look}
    for name, answer in fake.items():
        monkeypatch.setattr(ray, name, answer)
    table: NodeNumbers = numbers()
    assert own_number((3,), table) == 3
    looked = len(looks)
    assert own_number((), table) == 3
    assert len(looks) == looked, "known already"
    rows[:] = [listed("b", alive=False)]
    with pytest.raises(UnavailableError, match="given up this node"):
        own_number((), numbers())


def test_a_silent_ray_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise TimeoutError

    context = SimpleNamespace(get_node_id=lambda: "b")
    for owner, name, other in (
        (node_numbers, "LIST_DEADLINE_S", 0.01),
        (ray, "nodes", silent),
        (ray, "get_runtime_context", lambda: context),
    ):
        monkeypatch.setattr(owner, name, other)
    with pytest.raises(SilentError, match="does not list its nodes"):
        own_number((), numbers())


def test_marks_are_the_folders_of_memory_servers(tmp_path: Path) -> None:
    for name in ("kvcache-12-0", "kvcache-3-0", "kvcache-3-1", "kvcache-abc-0", "other-4-0", "kvcache"):
        (tmp_path / name).mkdir()
    assert disk_marks(str(tmp_path)) == [3, 12]
    assert disk_marks(str(tmp_path / "none")) == []
    assert disk_marks("") == []
