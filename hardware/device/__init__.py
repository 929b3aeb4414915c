"""Virtual NPUs and the instances made of them."""

from hardware.device.hbm import HbmLedger
from hardware.device.instance import KV_CACHE, WEIGHTS, WORKSPACE, VirtualInstance
from hardware.device.npu import NpuCounters, VirtualNpu

__all__ = ["KV_CACHE", "WEIGHTS", "WORKSPACE", "HbmLedger", "NpuCounters", "VirtualInstance", "VirtualNpu"]
