"""Transfers that share the links of the three planes: pure, event-driven, without a clock."""

from hardware.errors import FabricError
from hardware.fabric.fabric import Fabric, PlaneReading
from hardware.fabric.routes import Link, LinkId, Route, TransferId

__all__ = ["Fabric", "FabricError", "Link", "LinkId", "PlaneReading", "Route", "TransferId"]
