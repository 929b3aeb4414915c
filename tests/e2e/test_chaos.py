"""`cloudmatrix chaos` as a user runs it: it starts a system, injects faults, verifies that no request was lost, and
ends it.

Two of the model's three layers see 24 tokens, so that KV blocks are freed during requests, and moved without those.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.topology import small
from tests.examples.run_example import run_example
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import GPT_OSS

SAME = "tests/e2e/test_two_nodes.py::test_streams_and_prompts_survive_killed_instances"
SAME = "tests/e2e/test_two_nodes.py::test_streams_and_prompts_survive_killed_instances"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.nightly(SAME)]

SCENARIO = """
[scenario]
duration_s = 16
first_s = 1
every_s = 2.5
spread = 0.3
quiet_s = 3

[load]
rate_per_s = 4
asks = 12
longest_tokens = 80
long_prompt_tokens = 60

[[faults]]
kind = "kill"
weight = 3.0

[[faults]]
kind = "freeze"
least_s = 0.2
most_s = 0.6

[[faults]]
kind = "bit_flip"
count = 2

[[faults]]
kind = "slow_link"
delay_s = 0.2
least_s = 0.5
most_s = 1.0

[[faults]]
kind = "full_disk"
least_s = 0.5
most_s = 1.0

[[faults]]
kind = "cancel_burst"
count = 4
"""
SYSTEM = """
[kvcache]
replicas = 2
ub_memory_mib = 8
ssd_mib = 16
write_through = true

[chaos]
enabled = true
least_step_s = 0.01
"""
SEED = 17
"""Freezes and kills a memory server, fills a disk, kills a decode instance, lets clients leave."""


def test_nothing_is_lost_when_replicas_die(tmp_path: Path) -> None:
    config = small(tmp_path, write_random_checkpoint(tmp_path / "model", **GPT_OSS), prefill=2, decode=2)
    config.write_text(config.read_text() + SYSTEM)
    scenario = tmp_path / "short.toml"
    scenario.write_text(SCENARIO)
    out = tmp_path / "out"
    done = run_example(
        *("chaos.sh", "--scenario", str(scenario), "--config", str(config), "--out", str(out), "--seed", str(SEED)),
        environment={"OMP_NUM_THREADS": "1"},
        timeout_s=360,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((out / "report.json").read_bytes())
    assert report["failed"] == 0
    assert report["exact"] == report["compared"] == report["sent"] >= 60
    assert report["leaks"] == []
    kinds = {event["kind"] for event in report["events"] if event["target"] or event["kind"] == "cancel_burst"}
    assert len(kinds) >= 4, report["events"]
    replaced = [event for event in report["events"] if event["fate"] == "replaced"]
    assert len({event["pool"] for event in replaced}) >= 2, "instances and memory servers have died"
    assert "nothing lost, nothing different, nothing left behind" in done.stdout
    assert 'id="faults"' in (out / "report.html").read_text()
