"""How many replicas rows of `GET /cluster` make."""

from typing import Any

from serving.values.instances import whole_replicas


def ranks(group: str, *numbers: int, of: int = 2) -> list[dict[str, Any]]:
    return [{"group": group, "rank": number, "ranks": of} for number in numbers]


def test_an_instance_is_one_and_a_group_is_one() -> None:
    assert whole_replicas([]) == 0
    assert whole_replicas([{"group": None}, {"replica": "old"}]) == 2
    assert whole_replicas([*ranks("a", 0, 1), *ranks("b", 0, 1)]) == 2


def test_a_group_that_lacks_a_rank_is_none() -> None:
    assert whole_replicas([*ranks("a", 0, 1), *ranks("b", 1), *ranks("c", 0, 1, of=3)]) == 1


def test_a_group_that_grows_or_shrinks_is_there_all_the_while() -> None:
    assert whole_replicas([*ranks("a", 0, 1), *ranks("a", 2, of=4)]) == 1, "the fourth is still to come"
    assert whole_replicas([*ranks("a", 0, 1), *ranks("a", 2, of=3)]) == 1, "the third was not told yet that it leaves"
