"""Dashboard of response latency and failures."""

from deploy.grafana.source.panels import Panel, Row, board, mean, quantile, rate, value

TTFT, GAP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
LATE = "1 - " + rate(TTFT + '_bucket{le="2.5"}') + " / " + rate(TTFT + "_count")

ROWS = [
    Row(
        "Promises",
        [
            Panel("First tokens after 2.5 s", "percentunit", [("", LATE)], "The objective allows 1 %", number=True),
            Panel("TTFT, p99", "s", [("", quantile(0.99, TTFT))], number=True),
            Panel("Between tokens, p99", "s", [("", quantile(0.99, GAP))], number=True),
            Panel("Requests in flight", "short", [("", value("cloudmatrix:gateway_requests"))], number=True),
            Panel(
                "Waiting for their turn",
                "short",
                [("", value("cloudmatrix:gateway_queued_requests"))],
                number=True,
            ),
            Panel("Output tokens/s", "short", [("", rate("vllm:generation_tokens_total"))], number=True),
        ],
    ),
    Row(
        "Latency",
        [
            Panel(
                "Time to first token",
                "s",
                [(f"p{share:g}", quantile(share / 100, TTFT)) for share in (50, 90, 99)],
            ),
            Panel(
                "Between two tokens",
                "s",
                [(f"p{share:g}", quantile(share / 100, GAP)) for share in (50, 90, 99)],
            ),
            Panel(
                "Where requests spend their time, mean",
                "s",
                [
                    ("queue", mean("vllm:request_queue_time_seconds")),
                    ("prefill", mean("vllm:request_prefill_time_seconds")),
                    ("decode", mean("vllm:request_decode_time_seconds")),
                ],
                stacked=True,
            ),
        ],
    ),
    Row(
        "Traffic",
        [
            Panel(
                "Tokens",
                "short",
                [
                    ("prompt", rate("vllm:prompt_tokens_total")),
                    ("output", rate("vllm:generation_tokens_total")),
                ],
            ),
            Panel(
                "Where prompts' tokens came from",
                "short",
                [("{{source}}", rate("vllm:prompt_tokens_by_source_total", "source"))],
                stacked=True,
            ),
            Panel(
                "Where tokens of sessions' next turns came from",
                "short",
                [("{{from}}", rate("cloudmatrix:kv_resume_tokens_total", "from"))],
                "Of requests that name a session which had a request before",
                stacked=True,
            ),
            Panel(
                "Answers by status",
                "reqps",
                [("{{status}}", rate("http_requests_total", "status", each="engine handler method"))],
                stacked=True,
            ),
            Panel(
                "How choices ended",
                "short",
                [("{{finished_reason}}", rate("vllm:request_success_total", "finished_reason"))],
                stacked=True,
            ),
            Panel(
                "Refused by admission",
                "reqps",
                [("{{reason}}", rate("vllm:admission_rejections_total", "reason"))],
            ),
            Panel(
                "Went on elsewhere",
                "short",
                [("resumptions", rate("cloudmatrix:resumptions_total"))],
                "An instance failed a choice; it went on in another one",
            ),
        ],
    ),
]


def user() -> str:
    """The board's JSON."""
    return board("user", "user", "What clients see, counted by the gateways.", ROWS)
