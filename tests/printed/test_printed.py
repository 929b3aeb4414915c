"""Output shown in READMEs equals the programs' output. Output that needs a running system is compared in tests/e2e."""

from pathlib import Path

import pytest

from docs.printed.makers import ALONE, COMMAND, EXPERTS, LOAD, SERVED, STORY, SWEEP, show, shown
from tests.cases.nightly import mostly_nightly
from tests.pages import PAGES, ROOT

README = ROOT / "README.md"


HEAVY = "tests/printed/test_printed.py::test_shown_is_what_is_printed"


@pytest.mark.parametrize("name", mostly_nightly(ALONE, ["load test"], HEAVY))
def test_shown_is_what_is_printed(name: str) -> None:
    texts = {page: found[name] for page in PAGES if name in (found := shown(page))}
    assert texts, "a page shows it"
    made = ALONE[name]()
    assert texts == dict.fromkeys(texts, made), "python -m docs.printed writes it anew"


def test_every_block_has_a_maker() -> None:
    assert {name for page in PAGES for name in shown(page)} == {*ALONE, *SERVED}


def test_commands_beside_them_are_those_that_ran() -> None:
    text = README.read_text(encoding="utf-8")
    assert f"deploy/cloudmatrix384.toml {LOAD}\n" in text
    assert f"\ncloudmatrix {EXPERTS}\n" in (ROOT / "serving" / "virtual" / "README.md").read_text(encoding="utf-8")
    question = STORY["messages"][0]["content"]  # type: ignore[index]
    assert all(part in text for part in (f'"max_tokens": {STORY["max_tokens"]}, "temperature": 0', str(question)))


def test_a_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    before = "a\n<!-- printed: one -->\n```\nold \\1\n```\nb\n<!-- printed: two -->\n\n```\nkept\n```\n"
    page.write_text(before)
    assert show(page, "one", "new \\1\n")
    assert not show(page, "three", "nowhere\n")
    assert (
        page.read_text() == "a\n<!-- printed: one -->\n```\nnew \\1\n```\nb\n<!-- printed: two -->\n\n```\nkept\n```\n"
    )
    assert shown(page) == {"one": "new \\1\n", "two": "kept\n"}


def test_the_load_test_is_that_of_the_command_above_it() -> None:
    page = (ROOT / "loadgen" / "README.md").read_text(encoding="utf-8")
    assert f"\n{COMMAND}\n" in page
    assert f"\n{SWEEP}\n" in page
