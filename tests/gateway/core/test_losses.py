"""The gateway's record of lost instances."""

from serving.gateway.core.losses import MOST_NOTICES, Losses
from serving.ids import ReplicaId
from serving.values.traffic import InstanceNotice, NoticeKind

ONE, OTHER = ReplicaId("decode#a"), ReplicaId("decode#b")


def notice(replica: ReplicaId = ONE, kind: NoticeKind = "died") -> InstanceNotice:
    return InstanceNotice(kind, "decode", replica, "why", 2, 30)


def test_a_lost_instance_is_known_as_lost_until_it_is_not_listed() -> None:
    losses = Losses()
    losses.lost(notice(kind="frozen"), "1")
    assert losses.how(ONE, "1") == "frozen"
    assert losses.how(ONE, "2") is None, "its successor is another"
    assert losses.how(OTHER, "1") is None
    losses.retain({ONE})
    assert losses.how(ONE, "1") == "frozen"
    losses.retain({OTHER})
    assert losses.how(ONE, "1") is None


def test_only_the_same_process_comes_back() -> None:
    losses = Losses()
    losses.lost(notice(), "1")
    losses.came("decode", ONE, "2")
    losses.came("decode", OTHER, "1")
    assert [one.kind for one in losses.notices()] == ["died"]
    losses.lost(notice(), "2")
    losses.came("decode", ONE, "2")
    assert [one.kind for one in losses.notices()] == ["died", "died", "back"]
    assert losses.how(ONE, "2") is None


def test_a_notice_is_kept_until_it_is_reported() -> None:
    losses = Losses()
    assert losses.notices() == ()
    losses.lost(notice(), "1")
    first = losses.notices()
    losses.poisoned("it kills")
    assert losses.waiting, "the reporter does not wait for its turn"
    losses.reported(first)
    (left,) = losses.notices()
    assert (left.kind, left.reason) == ("poison", "it kills")
    losses.reported(losses.notices())
    assert losses.notices() == ()


def test_notices_are_bounded() -> None:
    losses = Losses()
    losses.lost(notice(), "1")
    before = losses.notices()
    for _ in range(MOST_NOTICES):
        losses.poisoned("it kills")
    assert len(losses.notices()) == MOST_NOTICES
    losses.reported(before)
    assert len(losses.notices()) == MOST_NOTICES, "what was dropped takes no other with it"
