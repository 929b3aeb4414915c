"""The reference table: complete, and the same in deploy/README.md."""

from dataclasses import fields
from pathlib import Path

from serving.config import KvCacheConfig, NamespaceConfig, NodeConfig, PoolConfig, ServeConfig, config_table
from serving.config.key import key_spec

README = Path(__file__).parents[2] / "deploy/README.md"
BEGIN, END = "<!-- config-table: python -m serving.config -->\n", "\n<!-- /config-table -->"


def test_every_section_and_every_key_has_a_row() -> None:
    table = config_table()
    for section in fields(ServeConfig):
        assert f"`[{section.name}]`" in table or f"`[[{section.name}]]`" in table
    for declared in (*fields(NodeConfig), *fields(PoolConfig), *fields(KvCacheConfig), *fields(NamespaceConfig)):
        assert f"`{declared.name}` |" in table
        assert key_spec(declared).doc in table


def test_rows_have_five_cells_and_no_machine_path() -> None:
    for row in config_table().splitlines():
        assert row.replace("\\|", "").count("|") == 6
        assert str(Path.cwd()) not in row


def test_the_readme_holds_this_table() -> None:
    text = README.read_text(encoding="utf-8")
    assert BEGIN in text
    printed = text.split(BEGIN)[1].split(END)[0]
    assert printed == config_table(), "README out of step: paste what `python -m serving.config` prints"
