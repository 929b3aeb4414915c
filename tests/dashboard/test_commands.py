"""Types and bounds of what may be asked."""

from typing import Any

import pytest

from serving.dashboard.commands import (
    LONGEST_HOLD_S,
    MOST_REPLICAS,
    DecisionsQuery,
    Hold,
    Release,
    Scale,
    from_json,
    from_query,
)
from serving.errors import ScaleError


def test_a_command_is_read_from_json() -> None:
    assert from_json(b'{"replicas": 3, "hold_s": 600, "by": "cli"}', Scale) == Scale(3, 600.0, "cli")
    assert from_json(b'{"replicas": 0}', Scale) == Scale(0)
    assert from_json(b'{"replicas": 384, "hold_s": null}', Scale) == Scale(MOST_REPLICAS)
    assert from_json(b"", Hold) == Hold()
    assert from_json(b"{}", Hold) == Hold()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"3", b'{"replicas": -1}', b'{"replicas": 385}', b'{"replicas": 1.5}', b'{"replicas": "3"}',
        b'{"replicas": true}', b'{"replicas": 1, "hold_s": -1}', b'{"replicas": 1, "hold_s": NaN}',
        b'{"replicas": 1, "hold_s": 1e400}', b'{"replicas": 1, "hold_s": 2592001}', b'{"replicas": 1, "by": "page"}',
        b'{"replicas": 1, "hold": 1}', b"\xff", b'{"replicas": 1, "by": "\xff"}', b'{"replicas": 1',
    ],
)  # fmt: skip
def test_what_is_no_scale_command_is_refused(body: bytes) -> None:
    with pytest.raises(ScaleError) as caught:
        from_json(body, Scale)
    assert caught.value.kind == "invalid"


def test_a_command_is_read_from_a_query() -> None:
    assert from_query({"replicas": "3", "hold_s": "60"}, Scale) == Scale(3, 60.0)
    assert from_query({"replicas": "3", "hold_s": ""}, Scale) == Scale(3)
    assert from_query({"hold_s": str(LONGEST_HOLD_S)}, Hold) == Hold(LONGEST_HOLD_S)
    assert from_query({}, Release) == Release()
    assert from_query({"pool": "decode", "after": "7", "limit": "2"}, DecisionsQuery) == DecisionsQuery("decode", 7, 2)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"replicas": ""}, Scale),
        ({"replicas": "two"}, Scale),
        ({"replicas": "1.5"}, Scale),
        ({"replicas": "1", "more": "1"}, Scale),
        ({"hold_s": "nan"}, Hold),
        ({"hold_s": "inf"}, Hold),
        ({"after": "-1"}, DecisionsQuery),
        ({"limit": "0"}, DecisionsQuery),
        ({"pool": "x" * 65}, DecisionsQuery),
    ],
)
def test_what_is_no_query_is_refused(query: dict[str, str], kind: Any) -> None:
    with pytest.raises(ScaleError) as caught:
        from_query(query, kind)
    assert caught.value.kind == "invalid"
