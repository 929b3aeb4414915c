"""Dashboard of scaling decisions: why a pool grew or did not."""

from deploy.grafana.source.panels import Panel, Row, board, increase, mean, quantile, value

SYSTEM = "model_name"
"""Label that all series of the system as a whole share."""
SERVING = '{state="serving"}'
START = "cloudmatrix:replica_start_seconds"
TARGET = value("cloudmatrix:scaling_target_replicas", "pool", each=SYSTEM)

ROWS = [
    Row(
        "Targets",
        [
            Panel("Asked for", "short", [("{{pool}}", TARGET)]),
            Panel(
                "There are",
                "short",
                [("{{pool}} {{state}}", value("cloudmatrix:scaling_replicas", "pool", "state", each=SYSTEM))],
                stacked=True,
            ),
            Panel(
                "Wanted, not serving",
                "short",
                [
                    (
                        "{{pool}}",
                        f"{TARGET} - {value('cloudmatrix:scaling_replicas' + SERVING, 'pool', each=SYSTEM)}",
                    )
                ],
                "For long: no host has room, or starts fail",
            ),
        ],
    ),
    Row(
        "Decisions",
        [
            Panel(
                "By kind, in an hour",
                "short",
                [
                    (
                        "{{pool}} {{kind}}",
                        increase("cloudmatrix:scaling_decisions_total", "pool", "kind", each=SYSTEM),
                    )
                ],
                stacked=True,
            ),
            Panel("Queue of the gateways", "short", [("tokens", value("cloudmatrix:gateway_queued_tokens"))]),
            Panel("Queues of the pools", "short", [("{{pool}}", value("cloudmatrix:queue_tokens", "pool"))]),
        ],
    ),
    Row(
        "Starts of replicas",
        [
            Panel("By phase, mean", "s", [("{{pool}} {{phase}}", mean(START, "pool", "phase", each=SYSTEM))]),
            Panel(
                "Whole, p90",
                "s",
                [("{{pool}}", quantile(0.9, START, "pool", each=SYSTEM, selector='{phase="total"}'))],
            ),
        ],
    ),
]


def scaling() -> str:
    """The board's JSON."""
    return board(
        "scaling",
        "scaling decisions",
        "What was asked for, what came of it, how long it took. The reasons: `cloudmatrix decisions`.",
        ROWS,
    )
