"""When requests are sent: seeded schedules drawn up front, without a notion of content."""

from loadgen.arrivals.process import Arrivals, ReplayedArrivals, Steady, each, stream
from loadgen.arrivals.varying import Ramp, RampShape, Steps

__all__ = [
    "Arrivals",
    "Ramp",
    "RampShape",
    "ReplayedArrivals",
    "Steady",
    "Steps",
    "each",
    "stream",
]
