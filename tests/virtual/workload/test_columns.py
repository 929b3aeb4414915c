"""Columns equal rows, for any selection of columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.virtual.workload.columns import BATCH, LARGEST_ID, Row, TraceRequest, batches_of, columns_of

ROWS = st.lists(
    st.tuples(
        st.floats(0, 1e6),
        st.integers(1, 1 << 40),
        st.integers(1, 1 << 40),
        st.lists(st.integers(0, LARGEST_ID), max_size=4),
    ),
    max_size=8,
)


def as_requests(rows: list[Row]) -> list[TraceRequest]:
    """Expected columns of these rows."""
    return [TraceRequest(arrival, prompt, output, tuple(ids)) for arrival, prompt, output, ids in rows]


@given(ROWS)
def test_columns_give_the_rows_back_as_requests(rows: list[Row]) -> None:
    requests = list(columns_of(rows).requests())
    assert requests == as_requests(rows)
    assert all(type(request) is TraceRequest for request in requests)


@given(ROWS, st.data())
def test_taking_some(rows: list[Row], data: st.DataObject) -> None:
    index = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))) if rows else []
    taken = columns_of(rows).take(np.array(index, np.int64))
    assert list(taken.requests()) == as_requests([rows[place] for place in index])


def test_batches_are_bounded_and_complete() -> None:
    rows: list[Row] = [(float(number), 1, 1, (number,)) for number in range(BATCH + 3)]
    batches = list(batches_of(rows))
    assert [len(columns) for columns in batches] == [BATCH, 3]
    assert [request for columns in batches for request in columns.requests()] == as_requests(rows)
