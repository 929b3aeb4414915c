"""Variables, files and headings named in the runbook exist."""

import re

from tests.deploy.tools import DEPLOY, ROOT

RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
SCRIPTS = [DEPLOY / "hosts" / name for name in ("environment.sh", "head.sh", "worker.sh")]


def test_every_variable_that_hosts_read_is_in_the_table() -> None:
    read = {name for path in SCRIPTS for name in re.findall(r"\$\{([A-Z]\w+):", path.read_text(encoding="utf-8"))}
    assert "HEAD_ADDRESS" in read
    table = {name for row in RUNBOOK.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row)}
    assert read - table == set()


def test_default_ports_are_those_of_the_table() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    ports = re.findall(r"\$\{(\w+_PORT):-(\d+)\}", text)
    assert len(ports) > 8
    for name, port in ports:
        rows = [row for row in RUNBOOK.splitlines() if row.startswith("|") and f"`{name}`" in row]
        assert any(port in row.split("|")[1] for row in rows), name


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy|tests)/[\w./-]*\w", RUNBOOK))
    made_by_hand = {"deploy/ray-token", "deploy/prometheus/ray"}
    assert len(named) > 10
    assert [path for path in sorted(named - made_by_hand) if not (ROOT / path).exists()] == []


def test_what_the_image_is_told_to_run_is_in_it() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    left_out = [line for line in lines if line and not line.startswith("#")]
    assert "tests" in left_out
    for path in SCRIPTS:
        assert not any(path.relative_to(ROOT).is_relative_to(name) for name in left_out)
    assert all(path.stat().st_mode & 0o111 for path in SCRIPTS[1:])
