"""Series of hosts: a dead one is down and has no resources."""

from prometheus_client import CollectorRegistry, generate_latest

from serving.telemetry.system_metrics import HostBoard
from serving.values.system_tally import HostRow

HOSTS = (HostRow("n0", "10.77.0.1", 8, 2, 1024, 192), HostRow("n1", "10.77.0.2", 8, 0, 1024, 0, lost_s=5.0))


def test_hosts_are_told_with_what_they_offer() -> None:
    board, registry = HostBoard("tiny"), CollectorRegistry()
    registry.register(board)
    assert generate_latest(registry) == b"", "nothing is known yet"
    board.publish(HOSTS)
    text = generate_latest(registry).decode()
    own = 'model_name="tiny"'
    for line in (
        f'cloudmatrix:host_up{{address="10.77.0.1",host="n0",{own}}} 1.0',
        f'cloudmatrix:host_up{{address="10.77.0.2",host="n1",{own}}} 0.0',
        f'cloudmatrix:host_npus{{host="n0",{own}}} 8.0',
        f'cloudmatrix:host_npus_used{{host="n0",{own}}} 2.0',
        f'cloudmatrix:host_ub_memory_bytes{{host="n0",{own}}} 1.073741824e+09',
        f'cloudmatrix:host_ub_memory_used_bytes{{host="n0",{own}}} 2.01326592e+08',
    ):
        assert line in text.splitlines(), text
    assert text.count('host="n1"') == 1
