"""Times as reasons of decisions tell them."""

import pytest

from serving.scaling.live.words import words


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90 s"), (600, "10 min"), (7200, "2 h"), (7260, "121 min"), (0.4, "0 s")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert words(seconds) == text
