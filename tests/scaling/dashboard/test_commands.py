"""Types and bounds of allowed operations."""

from typing import Any

import pytest

from serving.errors import ScaleError
from serving.scaling.dashboard.handlers import BY_PAGE, RayScale, from_json, from_query
from serving.values.scaling_operations import (
    LONGEST_HOLD_S,
    MOST_REPLICAS,
    HoldPool,
    ReadDecisions,
    ReleasePool,
    ScalePool,
)


def test_an_operation_is_read_from_json() -> None:
    body = b'{"replicas": 3, "hold_s": 600, "by": "cli"}'
    assert from_json(body, ScalePool, pool="decode") == ScalePool("decode", 3, 600.0, "cli")
    assert from_json(b'{"replicas": 0}', ScalePool, pool="decode") == ScalePool("decode", 0)
    assert from_json(b'{"replicas": 384, "hold_s": null}', ScalePool, pool="d") == ScalePool("d", MOST_REPLICAS)
    assert from_json(b"", HoldPool, pool="decode") == HoldPool("decode")
    assert from_json(b"{}", HoldPool, pool="decode") == HoldPool("decode")
    assert from_json(b'{"target_num_replicas": 2, "more": 1}', RayScale) == RayScale(2)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"3", b'{"replicas": -1}', b'{"replicas": 385}', b'{"replicas": 1.5}', b'{"replicas": "3"}',
        b'{"replicas": true}', b'{"replicas": 1, "hold_s": -1}', b'{"replicas": 1, "hold_s": NaN}',
        b'{"replicas": 1, "hold_s": 1e400}', b'{"replicas": 1, "hold_s": 2592001}', b'{"replicas": 1, "by": "page"}',
        b'{"replicas": 1, "hold": 1}', b"\xff",
        b'{"replicas": 1, "pool": "decode"}', b'{"replicas": 1, "by": "\xff"}', b'{"replicas": 1',
    ],
)  # fmt: skip
def test_what_is_no_scale_command_is_refused(body: bytes) -> None:
    with pytest.raises(ScaleError) as caught:
        from_json(body, ScalePool, pool="decode")
    assert caught.value.kind == "invalid"


def test_an_operation_is_read_from_a_query() -> None:
    asked = from_query({"replicas": "3", "hold_s": "60"}, ScalePool, pool="decode", by=BY_PAGE)
    assert asked == ScalePool("decode", 3, 60.0, "page")
    assert from_query({"replicas": "3", "hold_s": ""}, ScalePool, pool="decode") == ScalePool("decode", 3)
    assert from_query({"hold_s": str(LONGEST_HOLD_S)}, HoldPool, pool="d") == HoldPool("d", LONGEST_HOLD_S)
    assert from_query({}, ReleasePool, pool="decode") == ReleasePool("decode")
    assert from_query({"pool": "decode", "after": "7", "limit": "2"}, ReadDecisions) == ReadDecisions("decode", 7, 2)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"replicas": ""}, ScalePool),
        ({"replicas": "two"}, ScalePool),
        ({"replicas": "1.5"}, ScalePool),
        ({"replicas": "1", "more": "1"}, ScalePool),
        ({"replicas": "1", "by": "page"}, ScalePool),
        ({"hold_s": "nan"}, HoldPool),
        ({"hold_s": "inf"}, HoldPool),
        ({"after": "-1"}, ReadDecisions),
        ({"limit": "0"}, ReadDecisions),
        ({"pool": "x" * 65}, ReadDecisions),
    ],
)
def test_what_is_no_query_is_refused(query: dict[str, str], kind: Any) -> None:
    with pytest.raises(ScaleError) as caught:
        from_query(query, kind, **({} if kind is ReadDecisions else {"pool": "decode"}))
    assert caught.value.kind == "invalid"
