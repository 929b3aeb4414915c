"""Number of NPUs available to the pools."""

from serving.scaling.core.budget import CapacityWatch, Room
from serving.values.signals import PoolSignals
from tests.scaling.core.looks import decode, look, prefill

P, D = prefill(2), decode(2)
"""2 x 4 + 2 x 8 = 24 NPUs."""


def test_what_is_there_and_what_is_free_can_be_planned_with() -> None:
    assert CapacityWatch().see(look(0.0, (P, D), npus_free=10, npus_total=384)) == Room(34, 0)
    assert CapacityWatch().see(look(0.0, (P, D), npus_free=360, npus_total=30)) == Room(30, 0)
    assert CapacityWatch(28).see(look(0.0, (P, D), npus_free=360, npus_total=384)) == Room(28, 0)
    assert CapacityWatch().see(look(0.0, (), npus_free=9, npus_total=9)) == Room(9, 0)


def test_instances_that_leave_make_room_and_those_that_come_have_theirs() -> None:
    leaving = prefill(2, draining=3)
    assert CapacityWatch().see(look(0.0, (leaving, D), npus_free=0, npus_total=36)) == Room(36, 0)
    starting = prefill(2, target=4, starting=2)
    assert CapacityWatch().see(look(0.0, (starting, D), npus_free=4, npus_total=36)) == Room(36, 0), (
        "placed: 8 of 12 are theirs"
    )
    assert CapacityWatch().see(look(0.0, (starting, D), npus_free=12, npus_total=36)) == Room(36, 0), "not placed yet"
    unseen = prefill(2, target=4)
    assert CapacityWatch().see(look(0.0, (unseen, D), npus_free=12, npus_total=36)) == Room(36, 0), (
        "not even starting yet"
    )


def test_one_strange_look_takes_nothing_away_but_two_do() -> None:
    watch, lost = CapacityWatch(), decode(1, target=2, starting=1)
    strange = (P, lost)
    assert watch.see(look(0.0, strange, npus_free=0, npus_total=16)) == Room(16, 0), (
        "the budget itself is believed at once"
    )
    watch = CapacityWatch()
    assert watch.see(look(0.0, strange, npus_free=4, npus_total=20)).placeless == 0
    assert watch.see(look(1.0, strange, npus_free=4, npus_total=20)) == Room(20, 4)
    assert watch.see(look(2.0, (P, D), npus_free=8, npus_total=32)) == Room(32, 0)
    assert watch.see(look(3.0, strange, npus_free=4, npus_total=20)).placeless == 0


def stuck(now: float, free: int, running: int = 1, draining: int = 0) -> tuple[float, tuple[PoolSignals, ...], int]:
    return now, (P, decode(running, target=2, starting=2 - running, draining=draining)), free


def test_an_instance_that_never_comes_has_no_place_though_strangers_hide_it() -> None:
    watch = CapacityWatch()
    for second in range(31):
        now, pools, free = stuck(float(second), 0)
        assert watch.see(look(now, pools, npus_free=free, npus_total=384)).placeless == 0
    now, pools, free = stuck(31.0, 0)
    assert watch.see(look(now, pools, npus_free=free, npus_total=384)) == Room(16, 8)


def test_an_instance_that_only_takes_long_is_waited_for() -> None:
    for free, draining in ((8, 0), (0, 1)):
        watch = CapacityWatch()
        for second in range(60):
            now, pools, _ = stuck(float(second), free, draining=draining)
            assert watch.see(look(now, pools, npus_free=free, npus_total=384)).placeless == 0
    watch = CapacityWatch()
    for second in range(60):
        now, pools, _ = stuck(float(second), 0, running=1 if second < 25 else 2)
        assert watch.see(look(now, pools, npus_free=0, npus_total=384)).placeless == 0
