"""Money and energy of a plan, by its simulation and its reader's prices. Pure.

tokens in    cost of the prefill pool over prompt tokens, cached ones included: users are billed for them
tokens out   cost of the decode pool over output tokens
tokens       of requests within every limit; others are of no use
hosts        shared by both pools in proportion to their NPUs
one pool     its cost over prompt and output tokens, so that each costs the same
time         under load: until the last request arrives
"""

from dataclasses import dataclass, field
from pathlib import Path

from serving.config.key import key
from serving.config.load import load_sections
from serving.errors import ConfigError
from serving.tools.planning.candidate import Candidate
from serving.tools.planning.verdict import PlanVerdict

# Prices and watts as their reader gives them, in a TOML file. No prices of machines are built in.


@dataclass(frozen=True, slots=True)
class MoneyPrices:
    """`[money]`: what things cost."""

    currency: str = key("name of the currency, for the tables", default="EUR", low=1)
    npu_hour: float = key("an NPU for an hour", default=0.0, low=0.0)
    node_hour: float = key("a host for an hour, without its NPUs", default=0.0, low=0.0)
    kwh: float = key("a kilowatt-hour; 0 = the other prices have it", default=0.0, low=0.0)


@dataclass(frozen=True, slots=True)
class PowerDraw:
    """`[power]`: what things draw."""

    npu_busy_watts: float = key("an NPU while a step runs [W]", default=0.0, low=0.0)
    npu_idle_watts: float = key("an NPU while none runs [W]", default=0.0, low=0.0)
    node_watts: float = key("a host, without its NPUs [W]", default=0.0, low=0.0)
    overhead: float = key("power of the building over that of its machines (PUE)", default=1.0, low=1.0, high=10.0)


@dataclass(frozen=True, slots=True)
class PlanPrices:
    """One file, read."""

    money: MoneyPrices = field(default_factory=MoneyPrices)
    power: PowerDraw = field(default_factory=PowerDraw)

    @property
    def text(self) -> str:
        """All of them, for people."""
        money, power = self.money, self.power
        return (
            f"NPU {money.npu_hour:g} {money.currency}/h, host {money.node_hour:g} {money.currency}/h, "
            f"{money.kwh:g} {money.currency}/kWh; NPU {power.npu_busy_watts:g} W busy, "
            f"{power.npu_idle_watts:g} W idle, host {power.node_watts:g} W, overhead {power.overhead:g}"
        )


def read_prices(file: Path) -> PlanPrices:
    """Read a file of prices.

    Raises: ConfigError in one line: what cannot be read, unknown keys, numbers out of range, a file without any price
        or watt.
    Effects: reads the file.
    """
    prices = load_sections(file, PlanPrices, "--prices")
    money, power = prices.money, prices.power
    given = (money.npu_hour, money.node_hour, power.npu_busy_watts, power.npu_idle_watts, power.node_watts)
    if not any(given):
        raise ConfigError(f"{file}: no price and no watts above 0: see examples/prices.toml")
    if power.npu_idle_watts > power.npu_busy_watts:
        raise ConfigError(
            f"{file}: [power] npu_idle_watts = {power.npu_idle_watts:g} is more than npu_busy_watts = "
            f"{power.npu_busy_watts:g}"
        )
    return prices


# Money and energy of a plan, by its simulation and its reader's prices. Pure.

_HOUR_S = 3600.0
_MILLION = 1e6
_KILO = 1e3


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Cost of one plan.

    Attributes:
        per_hour: money. in_per_million, out_per_million: money for a million prompt, output tokens; nan without any.
        watts: mean under load, with the building's overhead.
        tokens_per_joule: prompt and output tokens; `out_tokens_per_joule` output tokens alone; nan without watts.
    """

    per_hour: float
    in_per_million: float
    out_per_million: float
    watts: float
    tokens_per_joule: float
    out_tokens_per_joule: float


def plan_cost(candidate: Candidate, verdict: PlanVerdict, prices: PlanPrices) -> PlanCost:
    """Cost of a plan at the load that was simulated."""
    prefill, prefill_w = _pool(candidate, candidate.prefills * candidate.prefill.npus, verdict.prefill_running, prices)
    decode, decode_w = _pool(candidate, candidate.decodes * candidate.decode.npus, verdict.decode_running, prices)
    hours = verdict.load_s / _HOUR_S
    joules = (prefill_w + decode_w) * verdict.load_s
    tokens = verdict.prompt_tokens + verdict.output_tokens
    into = _ratio(prefill * hours * _MILLION, verdict.prompt_tokens)
    out = _ratio(decode * hours * _MILLION, verdict.output_tokens)
    if candidate.one_pool:
        into = out = _ratio(decode * hours * _MILLION, tokens)
    return PlanCost(
        per_hour=prefill + decode,
        in_per_million=into,
        out_per_million=out,
        watts=prefill_w + decode_w,
        tokens_per_joule=_ratio(tokens, joules),
        out_tokens_per_joule=_ratio(verdict.output_tokens, joules),
    )


def _pool(candidate: Candidate, npus: int, running: float, prices: PlanPrices) -> tuple[float, float]:
    """Money per hour and watts of a pool with its share of the hosts."""
    money, power = prices.money, prices.power
    hosts = candidate.nodes * npus / candidate.npus
    each = power.npu_idle_watts + (power.npu_busy_watts - power.npu_idle_watts) * running
    watts = power.overhead * (npus * each + hosts * power.node_watts)
    return npus * money.npu_hour + hosts * money.node_hour + watts / _KILO * money.kwh, watts


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")
