"""What a replica imports: neither torch, which takes 130 MiB and seconds in each process, nor data frames.

Only where torch computes, or has no pool to read weights from, a replica imports it, in a function.
"""

import subprocess
import sys

from tests.architecture.source_tree import ROOT

PROCESSES = (
    "serving.gateway.live.replica",
    "serving.instance.live.compute_model",
    "serving.instance.live.replica",
    "serving.kvpool.live.controller_host",
    "serving.kvpool.live.replica",
    "serving.scaling.live.board",
    "serving.scaling.live.autoscaler_replica",
)
HEAVY = {"torch", "transformers", "pandas", "pyarrow", "scipy", "matplotlib"}


def test_processes_of_a_native_system_import_no_torch() -> None:
    program = f"import sys, {', '.join(PROCESSES)}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.split() == []
