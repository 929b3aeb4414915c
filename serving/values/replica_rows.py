"""Rows of `GET /cluster`: instances, or ranks of a group, and the number of replicas that they make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def whole_replicas(rows: Iterable[Mapping[str, Any]]) -> int:
    """Replicas in these rows of one pool: each instance is one, and each group all of whose ranks are present.

    Ranks that have just joined a group, or do not know its smaller size yet, report another size than the others: the
    least size counts.
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
