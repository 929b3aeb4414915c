"""Descriptions of hardware, and the published CloudMatrix384 one."""

from hardware.spec.plane import PathMeasure, Plane, PlaneMember, PlaneSpec, Reach, UbMeasures
from hardware.spec.supernode import DieSpec, NodeSpec, NpuSpec, SupernodeSpec

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
