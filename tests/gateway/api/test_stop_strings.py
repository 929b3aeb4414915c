from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from serving.gateway.api.detokenizer import StopSet, StopStrings

TEXT = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)


def naive(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The literal definition: the first moment at which the text ends with a stop string; the longest counts."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: tuple[str, ...], include: bool) -> tuple[list[str], str | None]:
    matcher = StopStrings(StopSet(stops), include=include)
    out = []
    for piece in pieces:
        match = matcher.push(piece)
        out.append(match.text)
        if match.stopped_by is not None:
            return out, match.stopped_by
    return [*out, matcher.flush()], None


@given(TEXT, STOPS, st.booleans(), st.lists(st.integers(0, 30), max_size=8))
@example("abcab", ("bca", "ab"), False, [1, 2, 3])
def test_any_chunking_equals_the_naive_search(
    text: str, stops: tuple[str, ...], include: bool, cuts: list[int]
) -> None:
    borders = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    out, stopped_by = run(pieces, stops, include)
    assert ("".join(out), stopped_by) == naive(text, stops, include)


@given(TEXT, STOPS)
def test_nothing_of_a_stop_string_leaks_and_nothing_else_is_held(text: str, stops: tuple[str, ...]) -> None:
    """Character by character: the released text is always a prefix of the final text, and the held-back text is always
    the start of some stop string.
    """
    final, _ = naive(text, stops, include=False)
    matcher = StopStrings(StopSet(stops))
    out = ""
    for end, char in enumerate(text, 1):
        match = matcher.push(char)
        out += match.text
        assert final.startswith(out)
        if match.stopped_by is not None:
            return
        held = text[len(out) : end]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@given(TEXT, STOPS, st.integers(0, 30))
def test_matches_count_from_where_they_are_armed(text: str, stops: tuple[str, ...], armed_from: int) -> None:
    matcher = StopStrings(StopSet(stops))
    out, stopped = "", None
    for position, char in enumerate(text):
        match = matcher.push(char, armed=position >= armed_from)
        out += match.text
        if match.stopped_by is not None:
            stopped = match.stopped_by
            break
    ends = [end for end in range(armed_from + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert (out + matcher.flush(), stopped) == (text, None)
        return
    longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
    assert stopped == longest
    # Text that was sent before it counted cannot be taken back.
    assert out in (text[: ends[0] - len(longest)], text[: len(out)])


def test_long_stop_strings_cost_their_length() -> None:
    stops = StopSet(tuple("a" * 1023 + chr(ord("b") + number) for number in range(16)))
    assert sum(len(steps) for steps in stops.steps) == 16 * 1024
    many = [StopStrings(stops) for _ in range(256)]
    assert all(one._set is stops for one in many)
    match = many[0].push("a" * 2000 + "c")
    assert (match.text, match.stopped_by) == ("a" * 977, stops.stops[1])


def test_flush_ends_what_was_held() -> None:
    matcher = StopStrings(StopSet(("END",)))
    assert matcher.push("the EN").text == "the "
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


def test_included_stop_string_stays_in_the_text() -> None:
    match = StopStrings(StopSet(("\n\n",)), include=True).push("one\n\ntwo")
    assert (match.text, match.stopped_by) == ("one\n\n", "\n\n")
