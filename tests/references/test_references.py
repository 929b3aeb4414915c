"""The generated references of docs/ are up to date and complete."""

import re
from dataclasses import fields

import pytest

from docs.reference_pages.markdown import table
from docs.reference_pages.pages import FOLDER, REFERENCES
from loadgen.cli.main import COMMANDS as LOADGEN_COMMANDS
from serving.cli.command_line import COMMANDS
from serving.config import KvCacheConfig, NamespaceConfig, NodeConfig, PoolConfig, ServeConfig
from serving.config.key import key_spec
from tests.pages import ROOT


@pytest.mark.parametrize("name", REFERENCES)
def test_a_page_holds_what_the_program_knows(name: str) -> None:
    text = REFERENCES[name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == text, "`python -m docs.reference_pages` writes it anew"
    assert str(ROOT) not in text


def test_there_are_no_other_pages() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(REFERENCES)


def test_every_section_and_every_key_has_a_row() -> None:
    text = REFERENCES["configuration.md"]()
    for section in fields(ServeConfig):
        assert f"`[{section.name}]`" in text or f"`[[{section.name}]]`" in text
    for declared in (*fields(NodeConfig), *fields(PoolConfig), *fields(KvCacheConfig), *fields(NamespaceConfig)):
        assert f"| `{declared.name}` |" in text
        assert key_spec(declared).doc.replace("|", "\\|") in text


def test_every_command_has_a_section_and_every_flag_a_meaning() -> None:
    text = REFERENCES["commands.md"]()
    for program, names in (("cloudmatrix", COMMANDS), ("loadgen", LOADGEN_COMMANDS)):
        assert [name for name in names if f"## {program} {name}\n" not in text] == []
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_series_has_a_meaning_and_durations_and_sizes_a_unit() -> None:
    rows = [line.split(" | ") for line in REFERENCES["metrics.md"]().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    for name, _, _, unit, meaning in rows:
        assert meaning.rstrip(" |"), name
        assert unit or ("second" not in name and "bytes" not in name), name


def test_every_series_that_gateways_export_is_listed() -> None:
    text = REFERENCES["metrics.md"]()
    for module in (ROOT / "serving" / "telemetry").glob("*.py"):
        if module.name != "ray_board.py":  # the names that Ray's own boards ask for
            for name in re.findall(r'"((?:cloudmatrix|vllm):\w+)"', module.read_text(encoding="utf-8")):
                assert f"`{name}`" in text or f"`{name}_total`" in text, name


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |\n"
