"""Dashboard of KV transfers: handoffs between hosts, and the pool."""

from deploy.grafana.source.panels import Panel, Row, board, increase, quantile, rate

USED, CAPACITY = "cloudmatrix:memory_server_used_bytes", "cloudmatrix:memory_server_capacity_bytes"
PAIR, PATH = ("source", "target"), "cloudmatrix:handoff_path_seconds"
DRAM = '{tier="dram"}'

ROWS = [
    Row(
        "Handoffs",
        [
            Panel("Between hosts, p50", "s", [("{{source}} to {{target}}", quantile(0.5, PATH, *PAIR))]),
            Panel("Between hosts, p99", "s", [("{{source}} to {{target}}", quantile(0.99, PATH, *PAIR))]),
            Panel(
                "Bytes",
                "Bps",
                [("{{source}} to {{target}}", rate("cloudmatrix:handoff_path_bytes_total", *PAIR))],
            ),
            Panel("Handoffs", "ops", [("{{pool}}", rate("cloudmatrix:handoffs_total", "pool"))]),
            Panel(
                "Failed pulls",
                "short",
                [("{{source}} to {{target}}", increase("cloudmatrix:handoff_path_failures_total", *PAIR))],
                "In the last hour",
            ),
            Panel(
                "Paths that are avoided",
                "short",
                [("{{engine}} {{trouble}}", "max by (engine, trouble) (cloudmatrix:isolated_paths)")],
            ),
        ],
    ),
    Row(
        "What instances get from the pool",
        [
            Panel(
                "Tokens looked up that were there",
                "percentunit",
                [
                    (
                        "{{pool}}",
                        rate("vllm:external_prefix_cache_hits_total", "pool")
                        + " / "
                        + rate("vllm:external_prefix_cache_queries_total", "pool"),
                    )
                ],
            ),
            Panel(
                "Blocks looked up",
                "ops",
                [("{{result}}", rate("cloudmatrix:pool_blocks_total", "result", each="engine pool"))],
                stacked=True,
            ),
            Panel(
                "Bytes",
                "Bps",
                [("{{direction}}", rate("cloudmatrix:pool_bytes_total", "direction", each="engine pool"))],
            ),
            Panel("A get, p99", "s", [("{{pool}}", quantile(0.99, "cloudmatrix:pool_get_seconds", "pool"))]),
            Panel("A put, p99", "s", [("{{pool}}", quantile(0.99, "cloudmatrix:pool_put_seconds", "pool"))]),
            Panel(
                "Promised and not given",
                "short",
                [("{{reason}}", increase("cloudmatrix:pool_lost_blocks_total", "reason", each="engine pool"))],
                "Blocks in the last hour",
            ),
        ],
    ),
    Row(
        "Memory servers",
        [
            Panel(
                "Memory in use",
                "percentunit",
                [
                    (
                        "{{server}}",
                        f"max by (server) ({USED}{DRAM} / {CAPACITY}{DRAM})",
                    )
                ],
            ),
            Panel(
                "SSD in use",
                "bytes",
                [("{{server}}", f'max by (server) ({USED}{{tier="ssd"}})')],
            ),
            Panel("Entries", "short", [("{{server}}", "max by (server) (cloudmatrix:memory_server_entries)")]),
            Panel(
                "Left for want of room",
                "ops",
                [
                    (
                        "{{server}} {{how}}",
                        rate("cloudmatrix:memory_server_evictions_total", "server", "how", each="server"),
                    )
                ],
            ),
            Panel(
                "Claimed by sessions",
                "bytes",
                [("{{server}} {{class}}", "max by (server, class) (cloudmatrix:kv_claimed_bytes)")],
            ),
            Panel(
                "Claims broken",
                "ops",
                [("{{server}}", rate("cloudmatrix:kv_claim_broken_total", "server", each="server"))],
                "An allocation found no other room",
            ),
            Panel(
                "Superseded by newer turns",
                "Bps",
                [("{{server}}", rate("cloudmatrix:kv_superseded_bytes_total", "server", each="server"))],
            ),
            Panel(
                "Share of the ring",
                "percentunit",
                [("{{server}}", "max by (server) (cloudmatrix:memory_server_weight)")],
                "0 = draining",
            ),
            Panel(
                "Found damaged",
                "short",
                [
                    (
                        "{{server}}",
                        increase("cloudmatrix:memory_server_damaged_total", "server", each="server tier"),
                    )
                ],
                "In the last hour",
            ),
        ],
    ),
]


def fabric() -> str:
    """The board's JSON."""
    return board("fabric", "fabric and pool", "KV between hosts, and the KV-cache pool.", ROWS)
