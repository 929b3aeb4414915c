"""Configurations of the clusters under test: small, quick, on free ports."""

from pathlib import Path

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"

_SMALL = """
[model]
path = "{model}"
name = "tiny"
dtype = "float32"

[serving]
mode = "{mode}"

[engine]
threads = 1

[cluster]
dashboard_port = 0

[[cluster.nodes]]
npus = 8
ub_memory_mib = 64

[hardware]
hbm_per_die_mib = 16
"""

_POOL = """
[{name}]
replicas = {replicas}
npus_per_instance = 2
ub_memory_mib = 4
"""


def small(folder: Path, model: Path, *, mode: str = "disaggregated", **replicas: int) -> Path:
    """One node of 8 NPUs with pools of two NPUs per instance."""
    text = _SMALL.format(model=model, mode=mode)
    text += "".join(_POOL.format(name=name, replicas=count) for name, count in replicas.items())
    path = folder / "small.toml"
    path.write_text(text)
    return path


def two_nodes(folder: Path) -> Path:
    """`deploy/two-nodes.toml` with any free port for the dashboard; the model is given by `--model`."""
    shipped = (DEPLOY / "two-nodes.toml").read_text()
    path = folder / "two-nodes.toml"
    ours = "[cluster]\ndashboard_port = 0\n\n[engine]\nthreads = 1\n\n[[cluster.nodes]]"
    path.write_text(shipped.replace("[[cluster.nodes]]", ours, 1))
    return path
