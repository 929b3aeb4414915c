"""`cloudmatrix cost --fit`: the profile of an engine from its measured steps, each with its error."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardware.cost import CostModel
from hardware.cost.accuracy import percent
from hardware.cost.engine_file import engine_text
from hardware.cost.engine_fit import EngineFit, PhaseFit, fit_engine
from hardware.cost.trust import OWN_DEVICE, fitted_region, quantity
from serving.cli.cost_tables import plain_table
from serving.cli.measured_runs import measured_rows
from serving.errors import ConfigError
from serving.terminal import table_console


def fit(cost: CostModel, arguments: argparse.Namespace) -> int:
    """Fit, print, and write the profile if requested.

    Args:
        cost: of the device and model of the rows.
    Returns: exit code.
    Raises: ConfigError, SpecError; a bad row gives one line.
    Effects: reads the rows, prints, writes the profile.
    """
    source, out = Path(arguments.fit), Path(arguments.out) if arguments.out else None
    if out is not None and out.suffix != ".toml":
        raise ConfigError(f"--out {out}: the profile's name must end in .toml")
    engine = cost.engine
    if engine is not None and not any(phase and phase.stated for phase in (engine.decode, engine.prefill)):
        raise ConfigError(f"--fit keeps what --engine states by hand, but {engine.name} states nothing: leave it out")
    name = (out or source).stem
    measured = measured_rows(source, arguments.dies, cost.device.die.per_npu, flag="--fit")
    found = fit_engine(cost, measured.rows, name=name, title=measured.title or f"fitted to {source.name}")
    if out is not None:
        try:
            out.write_text(engine_text(found.profile), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from error
    if arguments.json:
        print(json.dumps(_as_json(found), indent=2))
        return 0
    console = table_console()
    own = cost.device.name == OWN_DEVICE
    for phase in found.phases:
        _show(phase, "what CloudMatrix-Infer needs on this device" if own else "the values of the device file")
    for kind in sorted({"decode", "prefill"} - {phase.kind for phase in found.phases}):
        whose = "CloudMatrix-Infer" if own else "the device file"
        console.print(f"\nno row of {kind}: its steps remain those of {whose}, and count as not checked")
    if out is not None:
        console.print(f"\nwrote {out}: use it with --engine {out}", highlight=False, soft_wrap=True)
    return 0


def _show(found: PhaseFit, base: str) -> None:
    phase, console = found.phase, table_console()
    counts = ((phase.rows, "row"), (phase.parameters, "parameter"), (found.degrees, "degree"))
    rows, parameters, degrees = (f"{n} {word}{'s' * (n != 1)}" for n, word in counts)
    console.print(f"\n[bold]{found.kind}[/bold]: {rows}, {parameters}, {degrees} of freedom")
    console.print(
        f"  a step takes {phase.work:.4g} x {base} + {phase.step_s * 1e3:.3g} ms + {phase.token_s * 1e6:.3g} us a token"
        f"{', besides what --engine states' * phase.stated}"
    )
    table = plain_table("row", ">measured", ">predicted", ">error", ">left out", "source")
    for one in found.rows:
        table.add_row(
            one.row.place,
            f"{one.measured_s * 1e3:,.4g} ms",
            f"{one.predicted_s * 1e3:,.4g} ms",
            percent(one.error),
            percent(one.left_out),
            one.row.source,
        )
    console.print(table)
    if not found.degrees:
        console.print("  no row is left to judge the fit by: add a second one", style="yellow")
    console.print(f"  expect within {100 * phase.expected_error:.3g} % inside of {fitted_region(phase)}")
    points = [quantity(one) for one in phase.region if one.low == one.high]
    if points:
        console.print(f"  any other {', '.join(points)} is extrapolation: there are no measurements")


def _as_json(found: EngineFit) -> dict[str, Any]:
    return {
        "engine": asdict(found.profile),
        "fits": [
            {
                "phase": phase.kind,
                "degrees_of_freedom": phase.degrees,
                "rows": [
                    {
                        "row": one.row.place,
                        "measured_s": one.measured_s,
                        "predicted_s": one.predicted_s,
                        "error": one.error,
                        "left_out_error": one.left_out,
                    }
                    for one in phase.rows
                ],
            }
            for phase in found.phases
        ],
    }
