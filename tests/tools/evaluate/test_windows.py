"""Windows: every token but the first is predicted once, from the text just before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.evaluate.windows import TextWindow, cut_windows


def test_the_example_of_the_module() -> None:
    assert cut_windows(range(10), 6, 3) == [
        TextWindow((0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)),
        TextWindow((3, 4, 5, 6, 7, 8), (7, 8, 9), begins=False),
    ]
    assert cut_windows(range(10), 6, 3)[1].first_row == 3


@pytest.mark.parametrize("tokens", [[], [7]])
def test_nothing_to_predict(tokens: list[int]) -> None:
    assert cut_windows(tokens, 4, 4) == []


@given(st.integers(2, 200), st.integers(1, 40), st.data())
def test_each_token_once_with_enough_to_look_back_at(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    windows = cut_windows(range(length), context, stride)
    assert [target for window in windows for target in window.targets] == list(range(1, length))
    for window in windows:
        assert 1 <= len(window.targets) <= len(window.tokens) <= context
        # Tokens stand for their own positions: the last fed one is just before the last target.
        assert window.tokens == tuple(range(window.tokens[0], window.targets[-1]))
        assert window.targets == tuple(range(window.tokens[window.first_row] + 1, window.targets[-1] + 1))
        looks_back = window.targets[0] - window.tokens[0]
        assert looks_back >= min(window.targets[0], context - stride + 1)
