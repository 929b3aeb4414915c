"""Named actors end: `down` waits until Ray lists none, and kills again what came back meanwhile."""

import pytest

from serving.cluster.named_actor import end_actors
from serving.errors import SilentError


def test_actors_are_killed_until_none_is_listed() -> None:
    answers = [["board", "pool control"], ["pool control"], ["pool control"], []]
    killed: list[str] = []
    assert end_actors(lambda: answers.pop(0), killed.append) == ["board", "pool control"]
    assert killed == ["board", "pool control", "pool control", "pool control"]


def test_an_actor_that_never_ends_is_named() -> None:
    with pytest.raises(SilentError, match="board did not end"):
        end_actors(lambda: ["board"], lambda _: None, patience_s=0.0)


def test_where_no_system_is_nothing_is_killed() -> None:
    assert end_actors(list, lambda name: pytest.fail(name)) == []
