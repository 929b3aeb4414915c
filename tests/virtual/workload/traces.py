"""Shared helpers for tests of workloads."""

from serving.virtual.workload.columns import RequestStream, TraceRequest


def listed(workload: RequestStream) -> list[TraceRequest]:
    """All requests."""
    return list(workload.requests)
