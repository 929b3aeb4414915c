"""Rows of `GET /cluster`: instances, or ranks of a group, and how many replicas they make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def whole_replicas(rows: Iterable[Mapping[str, Any]]) -> int:
    """How many replicas these rows of one pool make: each instance is one, and each group all of whose ranks are there.

    Effects: none.
    """
    alone, there, sizes = 0, Counter[str](), dict[str, int]()
    for row in rows:
        group = row.get("group")
        if group is None:
            alone += 1
        else:
            there[group] += 1
            sizes[group] = int(row["ranks"])
    return alone + sum(count >= sizes[group] for group, count in there.items())
