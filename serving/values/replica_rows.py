"""Rows of `GET /cluster`: instances, or ranks of a group, and how many replicas they make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def whole_replicas(rows: Iterable[Mapping[str, Any]]) -> int:
    """How many replicas these rows of one pool make: each instance is one, and each group all of whose ranks are there.

    Ranks that have just joined a group, or were not told yet that it is smaller now, say another size than the others:
    the least of them counts.
    """
    alone, there, sizes = 0, Counter[str](), dict[str, int]()
    for row in rows:
        group = row.get("group")
        if group is None:
            alone += 1
        else:
            there[group] += 1
            sizes[group] = min(sizes.get(group, size := int(row["ranks"])), size)
    return alone + sum(count >= sizes[group] for group, count in there.items())
