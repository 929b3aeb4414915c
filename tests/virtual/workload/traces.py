"""What the tests of workloads share."""

from serving.virtual.workload.request import TraceRequest, Workload


def listed(workload: Workload) -> list[TraceRequest]:
    """All requests."""
    return list(workload.requests)
