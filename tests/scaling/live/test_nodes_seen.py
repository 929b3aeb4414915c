"""Nodes as the board lists them: numbered, and for a while after their end."""

from typing import Any

from serving.scaling.live.observe import SHOWN_LOST_S, UNUSED_S, NodesSeen
from tests.cluster.gcs_fake import FakeGcs
from tests.cluster.node_case import EXPECTED, UNEXPECTED, listed, numbers


class Case:
    """A board's nodes, with a listing and a clock to set."""

    def __init__(self, *rows: dict[str, Any], gcs: FakeGcs | None = None) -> None:
        self.rows, self.now = list(rows), 1000.0
        self.seen = NodesSeen(numbers(gcs), lambda: self.rows, lambda: self.now)

    def names(self) -> list[str]:
        """Names of the living nodes at a poll."""
        return [node.name for node in self.seen.poll()]

    def lost(self) -> list[tuple[str, float]]:
        """Names of the lost nodes as of the last poll, and for how long."""
        return [(one.seen.name, self.now - one.since) for one in self.seen.lost]


def test_labels_are_names_at_once_and_others_after_a_while() -> None:
    case = Case(listed("b" * 20), listed("a" * 20, "3"))
    assert case.names() == ["n3", "bbbbbbbb"]
    case.now += UNUSED_S + 1.0
    assert case.names() == ["n0", "n3"]


def test_a_lost_node_is_shown_until_its_number_is_in_use_again() -> None:
    case = Case(listed("a", "0"), listed("b", "1", npus=4, address="10.0.0.2"))
    assert case.names() == ["n0", "n1"]
    case.rows[1] = {**case.rows[1], "Resources": {}}
    assert [node.npus for node in case.seen.poll()] == [8, 4], "for a moment before its end Ray knows no resources"
    case.rows[1] = listed("b", "1", address="10.0.0.2", alive=False, reason=UNEXPECTED)
    assert case.names() == ["n0"]
    case.now += 12.0
    case.names()
    assert case.lost() == [("n1", 12.0)]
    (lost,) = case.seen.lost
    assert (lost.seen.npus, lost.seen.address) == (4, "10.0.0.2")
    case.rows.append(listed("c", "1", address="10.0.0.2"))
    assert case.names() == ["n0", "n1"]
    assert case.lost() == []


def test_a_lost_node_is_not_shown_for_ever_and_one_that_was_sent_away_not_at_all() -> None:
    case = Case(listed("a", "0"), listed("b", "1"))
    case.names()
    case.rows = [listed("a", alive=False, reason=UNEXPECTED), listed("b", alive=False, reason=EXPECTED)]
    assert case.names() == []
    assert [name for name, _ in case.lost()] == ["n0"]
    case.now += SHOWN_LOST_S + 1.0
    case.names()
    assert case.lost() == []


def test_a_board_that_was_started_again_knows_lost_nodes_by_their_numbers() -> None:
    gcs = FakeGcs()
    Case(listed("a", "0"), listed("b", "1"), gcs=gcs).names()
    again = Case(listed("a", "0"), listed("b", alive=False, reason=UNEXPECTED), listed("c"), gcs=gcs)
    assert again.names()[0] == "n0"
    assert again.lost() == [("n1", 0.0)]
