"""The animation: the committed picture is drawn from the committed run, and needs no external resources."""

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from docs.printed.animation.__main__ import PICTURE, TIMELINE
from docs.printed.animation.draw import Motion, draw
from docs.printed.animation.story import Timeline, npu_letters, story_of, wrapped
from tests.pages import ROOT

RUN = msgspec.json.decode(TIMELINE.read_bytes(), type=Timeline)
MOST_BYTES = 300_000
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_picture_is_what_the_committed_run_draws() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(RUN), "python -m docs.printed.animation draw"
    assert f"]({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_needs_nothing_else_and_is_small() -> None:
    text = draw(RUN)
    assert len(text.encode()) < MOST_BYTES
    names = {element.tag.removeprefix(SVG) for element in ET.fromstring(text).iter()}
    assert names == {"svg", "title", "style", "g", "rect", "path", "text", "clipPath", "animate"}, "no script, no image"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|@font-face|href|url\((?!#)", text) == []


def test_all_its_loops_are_equally_long_but_for_what_blinks() -> None:
    moves = [one for one in ET.fromstring(draw(RUN)).iter(f"{SVG}animate") if one.get("keyTimes")]
    assert {one.get("dur") for one in moves} == {f"{story_of(RUN).end_s:.2f}".rstrip("0") + "s"}
    for one in moves:
        times = [float(time) for time in one.attrib["keyTimes"].split(";")]
        assert times == sorted(times)
        assert times[0] == 0
        assert len(times) == len(one.attrib["values"].split(";"))


def test_the_run_was_a_kill_a_pause_and_a_second_instance() -> None:
    story = story_of(RUN)
    assert 12 <= story.end_s <= 28
    assert story.asked_s < story.killed_s < story.resumed_s < story.end_s
    states = [letters for _, letters in story.npus]
    assert any("x" in letters for letters in states)
    assert "x" not in states[-1]
    assert states[-1].count("d") == 2 * states[0].count("d")


@pytest.mark.parametrize("moment", ["killed_s", "resumed_s", "end_s"])
def test_a_still_picture_does_not_move(moment: str) -> None:
    story = story_of(RUN)
    text = draw(RUN, getattr(story, moment))
    assert "<animate" not in text
    shown = re.findall(r'<g opacity="1">(?:<text[^>]*>)([^<]*)', text)
    expected = {"killed_s": 1, "resumed_s": 3, "end_s": 7}[moment]
    assert len([one for one in shown if one in {text for _, text in story.captions}]) == expected


def test_text_is_broken_at_blanks_and_line_breaks_and_nothing_is_lost() -> None:
    text = "one two three\nfour fivesixseveneight"
    assert [text[start:end] for start, end in wrapped(text, 8)] == [
        "one two",
        "three",
        "four",
        "fivesixs",
        "eveneigh",
        "t",
    ]
    whole = [RUN.text[start:end] for start, end in wrapped(RUN.text, 62)]
    assert "".join(whole).replace(" ", "") == RUN.text.replace(" ", "").replace("\n", "")


def test_values_jump_or_move_and_stand_still_at_a_moment() -> None:
    moving, still = Motion(10.0), Motion(10.0, 5.0)
    steps = [(0.0, "a"), (2.0, "a"), (4.0, "b"), (6.0, "c")]
    attribute, inside = moving.steps("x", steps)
    assert attribute == 'x="a"'
    assert 'values="a;b;c" keyTimes="0;0.4;0.6" dur="10s"' in inside
    assert still.steps("x", steps) == ('x="b"', "")
    assert moving.steps("x", steps[:2]) == ('x="a"', "")
    assert still.line("width", [(0.0, 0.0), (10.0, 50.0)]) == ('width="25"', "")
    assert 'calcMode="linear"' in moving.line("width", [(0.0, 0.0), (10.0, 50.0)])[1]
    assert still.shown(6.0) == ('opacity="0"', "")
    assert still.blink("1;0", 1.0) == ""


def test_npus_are_told_by_pool_and_a_replacement_stands_before_the_dead() -> None:
    def replica(state: str, *npus: str) -> dict[str, object]:
        return {"state": state, "npus": list(npus)}

    pools = [
        {"name": "prefill", "replicas": [replica("serving", "n0.npu0")]},
        {"name": "decode", "replicas": [replica("dead", "n0.npu1", "n1.npu0"), replica("serving", "n1.npu0")]},
    ]
    assert npu_letters({"pools": pools}, 10) == "px......d."
