"""Keys as sent to instances: which sequences belong to one key, and their own priorities."""

from msgspec.structs import replace

from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.values.orders import Add
from tests.gateway.core.bench import GatewayBench, job


def told(key: str, *, shared: bool, priority: int = -3) -> tuple[int, int]:
    bench = GatewayBench("aggregated", limits=AdmissionLimits(512, 1_000_000, 256, shared=shared))
    replica = bench.up("aggregated")
    bench.submit(replace(job(priority=priority), key=key))
    (order,) = bench.sent[replica]
    assert isinstance(order, Add)
    return order.spec.line, order.spec.priority


def test_priorities_reach_instances_beside_other_keys() -> None:
    line, priority = told("acme/1", shared=True)
    assert priority == -3
    assert line > 0
    assert told("acme/1", shared=True, priority=5) == (line, 5), "the same at every gateway"
    assert told("acme/2", shared=True)[0] != line


def test_one_key_alone_has_no_line() -> None:
    assert told("acme/1", shared=False) == (0, -3)
