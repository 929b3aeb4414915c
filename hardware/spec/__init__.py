"""Descriptions of hardware, and the published CloudMatrix384 one."""

from hardware.spec.die import DieSpec
from hardware.spec.node import NodeSpec
from hardware.spec.npu import NpuSpec
from hardware.spec.plane import PathMeasure, Plane, PlaneMember, PlaneSpec, Reach, UbMeasures
from hardware.spec.supernode import SupernodeSpec

__all__ = [
    "DieSpec",
    "NodeSpec",
    "NpuSpec",
    "PathMeasure",
    "Plane",
    "PlaneMember",
    "PlaneSpec",
    "Reach",
    "SupernodeSpec",
    "UbMeasures",
]
