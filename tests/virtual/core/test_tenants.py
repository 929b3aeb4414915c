"""One tenant's flood in virtual time, and another tenant's short requests."""

from typing import Any

import pytest

from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream, TraceRequest
from tests.virtual.core.case import config

SHORT = [TraceRequest(1.0 + 0.7 * n, 64, 8, (), "b") for n in range(20)]
STEP_S = 0.35
"""A full prefill step of these instances: the running one, and one's own together with the other's prompts."""


def beside(flood: list[TraceRequest], mode: str, keys: tuple[str, ...] = ("a", "b")) -> SimResult:
    """The short requests among others, where 64 sequences decode at once and the gateway would admit 256."""
    pool: dict[str, Any] = {"replicas": 1, "npus_per_instance": 16, "max_step_tokens": 16_384}
    settings = config(
        serving={"mode": mode},
        gateway={"api_keys": keys, "max_running_sequences": 256, "max_queued_requests": 512},
        prefill=pool,
        decode=pool | {"max_sequences": 64},
        aggregated=pool | {"max_sequences": 64},
    )
    made = sorted([*flood, *SHORT], key=lambda one: one.arrival_s)
    return simulate(settings, RequestStream("two tenants", made, count=len(made)), check=True)


def worst(result: SimResult) -> tuple[float, float]:
    """Longest time to the first token, and to the last one, of the short requests."""
    rows = result.requests
    assert set(rows.outcome) == {Outcome.FINISHED}
    short = [row for row, tokens in enumerate(rows.prompt_tokens) if tokens == SHORT[0].prompt_tokens]
    assert len(short) == len(SHORT)
    first = max(rows.first_token_s[row] - rows.arrival_s[row] for row in short)
    return first, max(rows.finish_s[row] - rows.arrival_s[row] for row in short)


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
@pytest.mark.parametrize(("prompt", "output"), [(500, 300), (8000, 100)])
def test_short_requests_hardly_notice_anothers_flood(mode: str, prompt: int, output: int) -> None:
    alone = worst(beside([], mode))
    first, last = worst(beside([TraceRequest(0.0, prompt, output, (), "a")] * 200, mode))
    steps = 2 if prompt > 1000 else 1
    assert first <= 2 * alone[0] + steps * STEP_S
    # If the flood's prompts are computed on the same instance, each of the eight tokens may wait for a full step.
    assert last <= 2 * alone[1] + (8 if mode == "aggregated" and steps > 1 else steps) * STEP_S


def test_a_key_that_is_alone_has_all_that_is_configured() -> None:
    flood = [TraceRequest(0.0, 500, 300, (), "a")] * 300
    computed = []
    for keys in (("a",), ("a", "b")):
        rows = beside(flood, "disaggregated", keys).requests
        streams = [row for row, tokens in enumerate(rows.prompt_tokens) if tokens == 500]
        ends = min(rows.finish_s[row] for row in streams)
        computed.append(sum(rows.first_token_s[row] < ends for row in streams))
    assert computed[0] > 200
    assert 55 <= computed[1] <= 64
