"""The tutorials as pages: complete, parsed as intended, and no longer than ten minutes."""

import re
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.tutorials.page import FOLDER, TUTORIALS, alike, blocks, rewrite

PAGE = """
```bash
one
```

<!-- prints -->
```text
1 cat
```

<!-- by hand: it never ends -->
```bash
make serve
```

```bash
three
```

<!-- prints about -->
```text
decode  jinlcc3y  2,104 ms
```
"""


def test_blocks_know_what_is_run_and_what_is_shown_and_only_output_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    one, two, three = blocks(page)
    assert (one.commands, one.shown, one.how) == ("one\n", "1 cat\n", "")
    assert one.agrees("1 cat\n")
    assert not one.agrees("2 cats\n")
    assert two.serves
    assert two.by_hand
    assert three.agrees("decode 2l9py3d1 807 ms\n")
    assert three.agrees("decode   2l9py3d1   0.8 s\n")
    assert not three.agrees("prefill 2l9py3d1 807 ms\n")
    rewrite(page, ["2 dogs\n", None, "decode \\1\n"])
    assert page.read_text() == PAGE.replace("1 cat\n", "2 dogs\n").replace("decode  jinlcc3y  2,104 ms", "decode \\1")


def test_what_is_alike_differs_in_figures_only() -> None:
    assert alike("TTFT   8   3.1 ms") == alike("TTFT 12 1.02 s")
    assert alike("1 failed") != alike("1 done")


def test_every_tutorial_shows_what_its_commands_print() -> None:
    assert len(TUTORIALS) == 8
    for name in TUTORIALS:
        found = blocks(FOLDER / f"{name}.md")
        assert sum(block.shown is not None for block in found) >= 3, name
        assert [block.commands for block in found if block.shown == ""] == [], name


def test_no_tutorial_leaves_a_secret_that_all_can_read() -> None:
    commands = [block.commands for name in TUTORIALS for block in blocks(FOLDER / f"{name}.md")]
    lines = [line for command in commands for line in command.splitlines()]
    secrets = [line for line in lines if "rand" in line and ">" in line]
    assert secrets, "one makes Ray's token"
    assert all("umask 077" in line for line in secrets), secrets


_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(r"<!--.*?-->|\]\([^)]*\)|`[^`]*`", re.DOTALL)


def strange_figures(text: str) -> set[str]:
    """Figures of a page's prose that occur in none of its commands, their output and the files that these name."""
    text = re.sub(r"(?<=\d)[,_](?=\d{3})", "", text)
    code = "".join(_CODE.findall(text))
    files = [ROOT / name for name in re.findall(r"[\w./-]+\.(?:toml|py|sh)", code)]
    code += "".join(file.read_text(encoding="utf-8").replace("_", "") for file in files if file.is_file())
    return set(_FIGURE.findall(_NO_PROSE.sub("", _CODE.sub("", text)))) - set(re.findall(r"\d+(?:\.\d+)?", code))


@pytest.mark.parametrize("name", [name for name in TUTORIALS if name not in ("serve", "your-model")])
def test_figures_of_the_prose_are_those_of_commands_and_output(name: str) -> None:
    """The two other pages describe things that they do not run: versions of Python, other models."""
    assert strange_figures((FOLDER / f"{name}.md").read_text(encoding="utf-8")) == set()


def test_a_figure_that_no_command_has_is_found() -> None:
    page = "120 requests/s, 2,048 tokens:\n```bash\nrun --poisson 60 --prompt 2048\n```\n"
    assert strange_figures(page) == {"120"}
