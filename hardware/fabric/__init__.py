"""Transfers that share the links of the three planes: pure, event-driven, without a clock."""

from hardware.errors import FabricError
from hardware.fabric.fabric import Fabric
from hardware.fabric.link import Link, LinkId, Route, TransferId
from hardware.fabric.usage import PlaneReading

__all__ = ["Fabric", "FabricError", "Link", "LinkId", "PlaneReading", "Route", "TransferId"]
