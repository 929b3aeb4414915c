"""Table 11: UB switches that a supernode of some size needs, and how far their ports are used."""

import math

from hardware.cost.row_kind import RowKind
from hardware.spec.catalog import NODE_L1_UPLINKS, NODE_NPUS, UB_L2_PORTS, UB_SUBPLANES
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row
from serving.tools.paper.setting import Setting

_SOURCE = "CloudMatrix-Infer, Table 11"
_CHIPS_PER_SWITCH = 2
# NPUs, logical switches, use of their ports [%].
_PUBLISHED = ((384, 56, 100), (352, 56, 92), (288, 42, 100), (256, 42, 89), (192, 28, 100))


def switches_for(npus: int) -> tuple[int, float]:
    """Logical switches of the second tier, each as wide as two chips, and the used share of their ports.

    Every node has the same uplinks into each sub-plane, and sub-planes are identical.
    """
    nodes = math.ceil(npus / NODE_NPUS.whole)
    ports = UB_L2_PORTS.whole * _CHIPS_PER_SWITCH
    in_a_plane = math.ceil(nodes * NODE_L1_UPLINKS.whole / ports)
    switches = in_a_plane * UB_SUBPLANES.whole
    return switches, nodes * NODE_L1_UPLINKS.whole * UB_SUBPLANES.whole / (switches * ports)


def run(_setting: Setting) -> Findings:
    """Wire the published sizes."""
    rows: list[Row] = []
    for npus, switches, used in _PUBLISHED:
        ours, share = switches_for(npus)
        rows.append(
            Row(f"switches-{npus}", f"{npus} NPUs", switches, ours, "switches", How.MODEL, _SOURCE, RowKind.DERIVED)
        )
        rows.append(
            Row(f"used-{npus}", f"{npus} NPUs", used, 100 * share, "% of ports", How.MODEL, _SOURCE, RowKind.DERIVED)
        )
    return Findings(sorted(rows, key=lambda row: row.unit))


EXPERIMENT = Experiment(
    "table11", "Switches of a supernode and their use", "ports counted over nodes, sub-planes and switches", run
)
