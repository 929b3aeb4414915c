"""Ranks that are slow but alive."""

from serving.group.core.straggler import RankPace, StragglerMeasure, StragglerRules, Stragglers

FINE, SLOW = RankPace(1.0, 0.0), RankPace(2.0, 0.4)
SLOW_BUT_NOT_AWAITED = RankPace(2.0, 0.05)


def looks(one: Stragglers, pace: RankPace, start: float, count: int) -> list[tuple[float, str, float, float]]:
    """Changes of rank 3 in this many polls, 10 s apart."""
    found = []
    for number in range(count):
        now = start + 10.0 * number
        for effect in one.look({0: FINE, 1: FINE, 2: FINE, 3: pace}, now):
            assert effect.rank == 3
            found.append((now, effect.measure.value, effect.speed, effect.sequences))
    return found


def test_a_slow_rank_gets_less_and_less_while_others_wait_for_it() -> None:
    one = Stragglers()
    assert looks(one, SLOW, 0.0, 20) == [
        (20.0, "fewer_tokens", 0.5, 1.0),
        (50.0, "fewer_sequences", 0.5, 0.5),
        (80.0, "drain", 0.5, 0.0),
    ]
    one.keep({0: False, 1: False, 2: False, 3: True})
    assert 3 not in one.measures(), "another process is as good as any"


def test_the_first_measure_is_the_last_if_it_helps() -> None:
    one = Stragglers()
    looks(one, SLOW, 0.0, 3)
    assert looks(one, SLOW_BUT_NOT_AWAITED, 30.0, 20) == []
    assert one.measures()[3] is StragglerMeasure.FEWER_TOKENS


def test_a_rank_that_is_fast_again_gets_back_what_it_had() -> None:
    one = Stragglers()
    looks(one, SLOW, 0.0, 6)
    assert looks(one, FINE, 60.0, 9) == [(80.0, "fewer_tokens", 1.0, 1.0), (110.0, "none", 1.0, 1.0)]


def test_a_moment_is_no_reason() -> None:
    one = Stragglers()
    for start in (0.0, 30.0, 60.0):
        assert looks(one, SLOW, start, 2) == looks(one, FINE, start + 20, 1) == []


def test_a_rank_that_has_nothing_to_do_is_judged_anew() -> None:
    one = Stragglers()
    assert looks(one, SLOW, 0.0, 2) == []
    assert one.look({0: FINE, 1: FINE, 2: FINE}, 20.0) == []
    assert looks(one, SLOW, 30.0, 2) == []
    assert one.ratios()[3] == 2.0


def test_no_measure_goes_further_than_is_allowed() -> None:
    for furthest, wanted in (
        (StragglerMeasure.NONE, []),
        (StragglerMeasure.FEWER_SEQUENCES, ["fewer_tokens", "fewer_sequences"]),
    ):
        one = Stragglers(StragglerRules(furthest=furthest))
        assert [measure for _, measure, _, _ in looks(one, SLOW, 0.0, 30)] == wanted
        assert one.ratios()[3] == 2.0


def test_a_new_process_that_is_slow_too_is_not_drained_at_once() -> None:
    one = Stragglers()
    looks(one, SLOW, 0.0, 9)
    one.keep({0: False, 1: False, 2: False, 3: True})
    assert [measure for _, measure, _, _ in looks(one, SLOW, 90.0, 50)] == ["fewer_tokens", "fewer_sequences"]
    assert [(now, measure) for now, measure, _, _ in looks(one, SLOW, 590.0, 20)] == [(680.0, "drain")]


def test_only_one_rank_is_drained_at_a_time() -> None:
    one = Stragglers()
    ranks = {0: FINE, 1: FINE, 2: FINE, 3: SLOW, 4: SLOW}
    for number in range(30):
        one.look(ranks, 10.0 * number)
    assert [one.measures()[rank].value for rank in (3, 4)] == ["drain", "fewer_sequences"]


def test_of_two_ranks_none_is_the_slow_one() -> None:
    one = Stragglers()
    assert [one.look({0: FINE, 1: SLOW}, 10.0 * number) for number in range(9)] == [[]] * 9
    assert one.look({0: RankPace(0, 1), 1: RankPace(0, 0), 2: RankPace(0, 0)}, 99.0) == []
