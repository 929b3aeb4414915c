"""Dashboard of hosts: the existing hosts and their state in Ray."""

from deploy.grafana.source.panels import Panel, Row, board, increase, value

SYSTEM = "model_name"
"""Label that all series of the system as a whole share."""


ROWS = [
    Row(
        "Cluster",
        [
            Panel("Hosts alive", "short", [("", value("cloudmatrix:nodes", each=SYSTEM))], number=True),
            Panel("NPUs offered", "short", [("", value("cloudmatrix:npus_offered", each=SYSTEM))], number=True),
            Panel("NPUs in use", "short", [("", value("cloudmatrix:npus"))], number=True),
            Panel("Gateways that answer", "short", [("", 'count(up{job="cloudmatrix"} == 1)')], number=True),
            Panel(
                "Versions",
                "short",
                [("{{version}}, Python {{python}}", "count by (version, python) (cloudmatrix:build_info)")],
                number=True,
            ),
            Panel(
                "Hosts lost, last hour",
                "short",
                [("", increase("cloudmatrix:nodes_lost_total", each=SYSTEM))],
                number=True,
            ),
        ],
    ),
    Row(
        "By host, from Ray",
        [
            Panel("Processor", "percent", [("{{instance}}", "max by (instance) (ray_node_cpu_utilization)")]),
            Panel("Memory in use", "bytes", [("{{instance}}", "max by (instance) (ray_node_mem_used)")]),
            Panel(
                "/dev/shm in use",
                "bytes",
                [("{{instance}}", "max by (instance) (ray_node_mem_shared_bytes)")],
                "UB segments and Ray's object store",
            ),
            Panel("Network, sent", "Bps", [("{{instance}}", "max by (instance) (ray_node_network_send_speed)")]),
            Panel(
                "Network, received",
                "Bps",
                [("{{instance}}", "max by (instance) (ray_node_network_receive_speed)")],
            ),
            Panel("Disk in use", "bytes", [("{{instance}}", "max by (instance) (ray_node_disk_usage)")]),
        ],
    ),
    Row(
        "Hosts that come and go",
        [
            Panel("Hosts", "short", [("alive", value("cloudmatrix:nodes", each=SYSTEM))]),
            Panel(
                "Joined and lost",
                "short",
                [
                    ("joined", increase("cloudmatrix:nodes_joined_total", each=SYSTEM)),
                    ("lost", increase("cloudmatrix:nodes_lost_total", each=SYSTEM)),
                ],
            ),
        ],
    ),
]


def hosts() -> str:
    """The board's JSON."""
    return board("hosts", "hosts", "Hosts, as the system and as Ray see them.", ROWS)
