"""The search for the best static split needs few trials and finds the result of a plain search."""

from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.autoscaling.best_split import best_split
from tests.benchmarks.autoscaling.trial import Split, Trial

SIZES = Split(16, 32)


def trial(split: Split, attainment: float) -> Trial:
    return Trial(f"{split}", 100, 1.0, attainment, 1.0, 1.0, 0.0, 0, f"{split.prefill} + {split.decode}")


@given(
    st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.integers(1, 10),
)  # fmt: skip
def test_the_fewest_of_both_pools(prefill: int, decode: int, guess_prefill: int, guess_decode: int) -> None:
    asked: list[Split] = []

    def probe(split: Split) -> Trial:
        asked.append(split)
        holds = split.prefill >= prefill and split.decode >= decode
        return trial(split, 0.995 if holds else 0.9)

    best, count = best_split(probe, Split(guess_prefill, guess_decode), SIZES, 384, 0.99)
    if prefill <= guess_prefill + 2:
        assert best is not None
        assert best.sizes == f"{prefill} + {decode}"
    else:
        assert best is None
    assert count == len(asked) == len(set(asked))
    assert all(one.prefill * 16 + one.decode * 32 <= 384 for one in asked)


def test_a_good_guess_costs_few_questions_and_nothing_that_fits_may_hold() -> None:
    asked: list[Split] = []

    def probe(split: Split) -> Trial:
        asked.append(split)
        return trial(split, 1.0 if split.prefill >= 2 and split.decode >= 5 else 0.5)

    best, _ = best_split(probe, Split(2, 5), SIZES, 384, 0.99)
    assert best is not None
    assert len(asked) == 4
    assert best_split(lambda split: trial(split, 0.5), Split(1, 1), SIZES, 384, 0.99)[0] is None
