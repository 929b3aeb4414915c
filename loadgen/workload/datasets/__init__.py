"""Data sets as workloads: recorded conversations, prompts of one's own, and traces of real services."""

from loadgen.workload.datasets.custom import Custom
from loadgen.workload.datasets.fit import Fit, Measure, Tally
from loadgen.workload.datasets.sharegpt import ShareGpt
from loadgen.workload.datasets.traces import BlockPrompts, TraceWorkload

__all__ = ["BlockPrompts", "Custom", "Fit", "Measure", "ShareGpt", "Tally", "TraceWorkload"]
