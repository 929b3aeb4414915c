"""The loads on which the autoscaler is tried: how each trace is played, and on which pools."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import cos, pi
from pathlib import Path

import numpy as np

from loadgen.trace import Reading, open_trace
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.workload.columns import RequestStream, TraceRequest
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.synthetic import synthetic_workload
from tests.benchmarks.conditions import ROOT

CONFIG = ROOT / "deploy" / "cloudmatrix384-autoscaled.toml"
R1_DAY = "servegen_deepseek_r1"
MOONCAKE = "mooncake/conversation_trace.jsonl"
AZURE = ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv", "azure_llm_2023/AzureLLMInferenceTrace_code.csv")
_DAY_BYTES = 1 << 30
"""A whole day is stored: a hopeless run is given up early only if the number of requests is known."""


_WAVE_S = 600.0
_WAVES: dict[str, Callable[[float], float]] = {
    "sinus": lambda at: 4.5 - 3.5 * cos(2 * pi * at / _WAVE_S),
    "bursts": lambda at: 8.0 if at % 150 >= 120 else 2.0,
    "ramp": lambda at: 1.0 + 7.0 * at / _WAVE_S,
}
"""Requests per second at a time [s]."""
_WAVE_TOP = 8.0


@dataclass(frozen=True, slots=True)
class Load:
    """One load: how the trace is played (`said`), pools and SLOs, and whether to search for the best static split."""

    name: str
    said: str
    config: ServeConfig
    open: Callable[[], RequestStream]
    searched: bool = True


def trace_loads(traces: Path, *, day_speed: float, day_sample: int, day_volume: float, whole_day: bool) -> list[Load]:
    """The traces in a folder; of the ServeGen R1 day otherwise only its evening, 19:30 to midnight."""
    alone = without_prefixes(load_config(CONFIG))
    start_s = 0.0 if whole_day else 70_200.0
    rate = day_speed * day_volume / day_sample
    said = f"{day_speed:g} x as fast, {day_volume:g} x its requests, 1 of {day_sample}: {rate:g} x the service's rate"
    loads = [
        Load(
            "R1 day" if whole_day else "R1 evening", said, alone,
            partial(
                open_workload, traces / R1_DAY, rate=day_speed, volume=day_volume, shard=(0, day_sample),
                start_s=start_s, duration_s=86_400.0 - start_s, kept_bytes=_DAY_BYTES
            )
        ),
        Load(
            "Mooncake conv", "2 x as fast", load_config(CONFIG), partial(open_workload, traces / MOONCAKE, rate=2.0)
        )
    ]  # fmt: skip
    for path in AZURE:
        opened = partial(open_workload, traces / path, rate=4.0, length=4.0)
        loads.append(Load(f"Azure {Path(path).stem[-4:]}", "4 x as fast, lengths x 4", alone, opened))
    return loads


def wave_loads() -> list[Load]:
    """Rates that change within minutes: ten of them, with Poisson arrivals ("sinus" with even ones, too).

    Prefill instances of 8 NPUs and one of 32 for decode, on the engine for which one of the former computes 1.8 of the
    requests a second: a peak takes five.
    """
    config = without_prefixes(load_config(CONFIG))
    config = replace(
        config, slo=replace(config.slo, tpot_s=0.05), prefill=replace(config.prefill, npus_per_instance=8, replicas=1),
        decode=replace(config.decode, replicas=1), simulation=replace(config.simulation, engine="vllm-ascend"),
    )  # fmt: skip
    said = f"1 to 8 requests/s of {{}} tokens for {_WAVE_S:g} s, TPOT 50 ms, vllm-ascend"
    loads = [
        Load(name, said.format("8,000 + 300"), config, partial(_wave, name, (8000, 300))) for name in _WAVES
    ]  # fmt: skip
    even = Load("sinus, even", said.format("8,000 + 300"), config, partial(_wave, "sinus", (8000, 300), even=True))
    small = replace(config, decode=replace(config.decode, npus_per_instance=16))
    long = Load("sinus, long", said.format("500 + 3,000"), small, partial(_wave, "sinus", (500, 3000)))
    return [loads[0], even, *loads[1:], long]


def _wave(name: str, tokens: tuple[int, int], *, even: bool = False) -> RequestStream:
    """The requests of a wave: drawn by thinning, or where the sum of its rate reaches a whole number."""
    rate, rng = _WAVES[name], np.random.default_rng(0)
    if even:
        grid = np.arange(0.0, _WAVE_S, 0.01)
        sums = np.cumsum([rate(at) * 0.01 for at in grid])
        arrivals = np.interp(np.arange(0.5, sums[-1]), sums, grid)
    else:
        drawn = np.sort(rng.uniform(0.0, _WAVE_S, rng.poisson(_WAVE_TOP * _WAVE_S)))
        arrivals = drawn[rng.uniform(0.0, _WAVE_TOP, len(drawn)) < [rate(at) for at in drawn]]
    requests = [TraceRequest(at, *tokens) for at in arrivals.tolist()]
    return RequestStream(name, requests, count=len(requests), duration_s=requests[-1].arrival_s)


def file_load(path: Path, block_tokens: int | None) -> Load:
    """Any unmodified trace, with a KV-cache pool if it states shared prefixes."""
    config = load_config(CONFIG)
    reading = Reading(block_tokens)
    opened = partial(open_workload, path, block_tokens=block_tokens)
    said = ["as it stands", *opened().notes.values()]
    known = open_trace(path, reading).block_tokens is not None
    return Load(path.name, "; ".join(said), config if known else without_prefixes(config), opened)


def steady_load(hours: float) -> Load:
    """Poisson arrivals at one rate."""
    config = without_prefixes(load_config(CONFIG))
    flat = partial(synthetic_workload, 8.0, 3600.0 * hours, 1200, 1500)
    return Load("flat", f"8 requests/s of 1,200 + 1,500 tokens for {hours:g} h", config, flat, searched=False)


def resized(load: Load, decode_npus: int) -> Load:
    """The same with decode instances of another size, with as many as fit next to one of prefill."""
    config = load.config
    most = min(config.autoscaler.max_decode, (config.cluster.npus - config.prefill.npus_per_instance) // decode_npus)
    scaler = replace(config.autoscaler, max_decode=most)
    decode = replace(config.decode, npus_per_instance=decode_npus, replicas=min(config.decode.replicas, most))
    return replace(load, config=replace(config, decode=decode, autoscaler=scaler))


def without_prefixes(config: ServeConfig) -> ServeConfig:
    """For traces without prefixes: no KV-cache pool, whose servers would only store."""
    return replace(
        config, kvcache=replace(config.kvcache, replicas=0), engine=replace(config.engine, prefix_reuse=False)
    )
