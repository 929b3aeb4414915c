"""Dashboard for operators: whether each pool is busy, full or failing."""

from deploy.grafana.source.panels import Panel, Row, board, quantile, rate, value

STEPS = "cloudmatrix:steps_total"

ROWS = [
    Row(
        "Instances",
        [
            Panel(
                "Sequences that run",
                "short",
                [("{{pool}}", value("vllm:num_requests_running", "pool"))],
                stacked=True,
            ),
            Panel(
                "Sequences that wait",
                "short",
                [("{{pool}}", value("vllm:num_requests_waiting", "pool"))],
                stacked=True,
            ),
            Panel(
                "Why they wait",
                "short",
                [("{{pool}} {{reason}}", value("vllm:num_requests_waiting_by_reason", "pool", "reason"))],
                stacked=True,
            ),
            Panel(
                "KV blocks held by sequences",
                "percentunit",
                [("{{engine}}", "max by (engine) (vllm:kv_cache_usage_perc)")],
            ),
            Panel(
                "Busy",
                "percentunit",
                [("{{engine}}", rate("cloudmatrix:busy_seconds_total", "engine"))],
                "Share of time within engine steps",
            ),
            Panel("Steps", "ops", [("{{engine}}", rate(STEPS, "engine"))], "None while sequences run: stuck"),
        ],
    ),
    Row(
        "Work",
        [
            Panel(
                "Prompt tokens computed",
                "short",
                [("{{pool}}", rate("cloudmatrix:prompt_tokens_computed_total", "pool"))],
            ),
            Panel("Tokens sampled", "short", [("{{pool}}", rate("cloudmatrix:tokens_sampled_total", "pool"))]),
            Panel(
                "Length of a step, mean",
                "s",
                [("{{pool}}", rate("cloudmatrix:busy_seconds_total", "pool") + " / " + rate(STEPS, "pool"))],
            ),
            Panel(
                "Tokens of a step, p90",
                "short",
                [("{{pool}}", quantile(0.9, "vllm:iteration_tokens_total", "pool"))],
            ),
            Panel("Had to give blocks back", "short", [("{{pool}}", rate("vllm:num_preemptions_total", "pool"))]),
            Panel(
                "HBM",
                "bytes",
                [
                    ("used", value("cloudmatrix:npu_hbm_used_bytes")),
                    ("there is", value("cloudmatrix:npu_hbm_capacity_bytes")),
                ],
            ),
        ],
    ),
    Row(
        "Time of real NPUs",
        [
            Panel(
                "Predicted NPU seconds per second",
                "short",
                [("{{pool}}", rate("cloudmatrix:predicted_npu_seconds_total", "pool"))],
                "What Ascend NPUs would have been busy for the same steps",
            ),
            Panel(
                "Guessed tokens that were right",
                "percentunit",
                [
                    (
                        "{{pool}}",
                        rate("vllm:spec_decode_num_accepted_tokens_total", "pool")
                        + " / "
                        + rate("vllm:spec_decode_num_draft_tokens_total", "pool"),
                    )
                ],
            ),
        ],
    ),
]


def operator() -> str:
    """The board's JSON."""
    return board("operator", "operator", "The instances of each pool.", ROWS)
