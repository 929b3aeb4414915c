"""Prices and watts as their reader gives them, in a TOML file. No prices of machines are built in."""

from dataclasses import dataclass, field
from pathlib import Path

from serving.config.key import key
from serving.config.load import load_sections
from serving.errors import ConfigError


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
