"""Descriptions of hardware, and the published CloudMatrix384 one."""

from hardware.spec.die import DieSpec
from hardware.spec.node import NodeSpec
from hardware.spec.npu import NpuSpec
from hardware.spec.plane import Member, PathMeasure, Plane, PlaneSpec, Reach, UbMeasures
from hardware.spec.supernode import SupernodeSpec

__all__ = [
    "DieSpec",
    "Member",
    "NodeSpec",
    "NpuSpec",
    "PathMeasure",
    "Plane",
    "PlaneSpec",
    "Reach",
    "SupernodeSpec",
    "UbMeasures",
]
