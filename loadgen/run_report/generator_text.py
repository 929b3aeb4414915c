"""The generator's own performance, as sentences for terminal and page."""

from loadgen.report import numbers
from loadgen.result import Generator

OWN_LIMIT = "The generator was the bottleneck: these figures say more about it than about the server."
BUSY_MACHINE = "The machine was busy: times are longer than the server's own."
KEPT_UP = "The generator kept up."


def generator_figures(generator: Generator) -> str:
    """Figures that the verdict on the generator rests on, as one sentence."""
    processes = "one process" if generator.workers == 1 else f"{generator.workers} processes"
    parts = [
        f"{processes}, busy for at most {numbers.share(generator.cpu_share)} of a core",
        f"timers late by {numbers.duration(generator.loop_lag_p99_s)} (p99)",
    ]
    if generator.offered_per_s is not None and generator.achieved_per_s is not None:
        achieved, offered = numbers.significant(generator.achieved_per_s), numbers.significant(generator.offered_per_s)
        parts.append(f"{achieved} of {offered} offered requests per second sent")
    if generator.starved_s > 0:
        parts.append(f"slots empty for {numbers.duration(generator.starved_s)} for want of prompts")
    if generator.cores and generator.others_cores is not None:
        parts.append(f"other programs used {generator.others_cores:.1f} of {generator.cores} cores")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
