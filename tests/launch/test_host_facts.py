"""Problems of a host that a doctor finds, one line each with the remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware.units import MIB
from serving.cluster.host_environment import EVERY_HOST, MANY_HOSTS
from serving.launch.doctor import HostFacts, digest_of, facts_here, problems, rows, segment_bytes, supplied_lines
from serving.launch.hosts import Host

LEFT = Host("left", "10.0.0.1", "aa", 8, 1024, head=True)
RIGHT = Host("right", "10.0.0.2", "bb", 8, 1024, head=False)
MODEL = Path("/models/m")
SOUND = HostFacts("1.0", "3.11.2", "abc", 2048 * MIB, 4096 * MIB, (), tls=False, tls_missing=(), clock=0.0)


def found(offset: float = 0.0, looked_for: Path | None = MODEL, **changed: Any) -> list[str]:
    """Problems when the right host differs in these facts."""
    hosts = {LEFT: SOUND, RIGHT: replace(SOUND, **changed)}
    return problems(SOUND, hosts, {LEFT: 0.0, RIGHT: offset}, looked_for)


def test_hosts_that_are_alike_are_sound() -> None:
    assert found() == []
    assert found(offset=-0.9) == []
    assert found(looked_for=None) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"version": "1.1"}, "has version 1.1, this machine 1.0: install the same on every host"),
        ({"model": ""}, "has no /models/m: copy it there"),
        ({"model": "abd"}, "its /models/m differs from other hosts"),
        ({"memory_total": 64 * MIB, "memory_free": 64 * MIB}, "/dev/shm has 64 MiB, but the host offers 1024 MiB"),
        ({"memory_free": 1023 * MIB}, "/dev/shm has 1023 MiB free of 1024 MiB of UB memory: delete what others left"),
        ({"environment": ("A=1", "B=2")}, "its Ray was started without A=1 B=2: `eval"),
        ({"tls": True}, "Ray's TLS is on, here off: use one RAY_USE_TLS everywhere"),
        ({"tls_missing": ("RAY_TLS_CA_CERT",)}, "no file at RAY_TLS_CA_CERT: put the certificates there"),
        ({"offset": 3600.0}, "its clock is +3600.0 s off this machine's: let NTP set it"),
    ],
)
def test_each_problem_is_a_line_with_the_host_and_the_way_out(changed: dict[str, Any], line: str) -> None:
    (said,) = found(**changed)
    assert said.startswith("right (10.0.0.2): ")
    assert line in said


def test_a_model_that_the_pool_supplies_is_a_line_and_no_problem() -> None:
    hosts, offsets = {LEFT: SOUND, RIGHT: replace(SOUND, model="")}, {LEFT: 0.0, RIGHT: 0.0}
    assert problems(SOUND, hosts, offsets, MODEL, supplied=True) == []
    (line,) = supplied_lines(hosts, MODEL)
    assert line.startswith("right (10.0.0.2): has no /models/m: it gets small files from Ray's control store")
    nowhere = {host: replace(facts, model="") for host, facts in hosts.items()}
    assert len(problems(replace(SOUND, model=""), nowhere, offsets, MODEL, supplied=True)) == 2


def test_a_row_a_host() -> None:
    facts = {RIGHT: replace(SOUND, model="", environment=("A=1",)), LEFT: SOUND}
    assert rows(facts, {LEFT: 0.0, RIGHT: 1.25}, {RIGHT: ["left"]}) == [
        ("left (10.0.0.1)", "1.0", "3.11.2", "abc", "2048/4096", "+0.00", "as node-env", "off", "none"),
        ("right (10.0.0.2)", "1.0", "3.11.2", "-", "2048/4096", "+1.25", "1 missing", "off", "left"),
    ]


def test_our_own_segments_count_as_free(tmp_path: Path) -> None:
    (tmp_path / "of-somebody-else").write_bytes(bytes(1 << 20))
    assert segment_bytes(tmp_path) == 0
    (tmp_path / "cloudmatrix-ub-abc-node-decode").write_bytes(bytes(1 << 20))
    assert segment_bytes(tmp_path) >= 1 << 20


def test_facts_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (EVERY_HOST | MANY_HOSTS).items():
        monkeypatch.setenv(name, value)
    before = facts_here(None)
    assert (before.environment, before.tls, before.tls_missing, before.model) == ((), False, (), "")
    monkeypatch.setenv("RAY_worker_niceness", "15")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    after = facts_here(None)
    assert after.environment == ("RAY_worker_niceness=0",)
    assert after.tls_missing == ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def test_a_model_is_told_by_its_small_files_and_the_sizes_of_its_weights(tmp_path: Path) -> None:
    assert digest_of(tmp_path) == ""
    (tmp_path / "config.json").write_text("{}")
    first = digest_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12")
    second = digest_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert len({first, second, digest_of(tmp_path)}) == 3
