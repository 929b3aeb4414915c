"""All experiments, in the order of the papers."""

from collections.abc import Sequence
from difflib import get_close_matches

from serving.errors import ConfigError
from serving.tools.paper import (
    figure_20_decode_microbatch,
    figure_21_prefill_microbatch,
    figure_22_mtp,
    figure_23_context_cache,
    figure_24_allocation,
    table_1_ub_paths,
    table_2_model_caching,
    table_3_prefill,
    table_4_decode,
    table_5_decode_slo,
    table_7_exchange,
    table_8_mla,
    table_10_gemm,
    table_11_switches,
    xdeepserve_peak,
    xdeepserve_production,
    xdeepserve_split,
)
from serving.tools.paper.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = tuple(
    module.EXPERIMENT
    for module in (
        table_1_ub_paths,
        table_2_model_caching,
        table_3_prefill,
        table_4_decode,
        table_5_decode_slo,
        table_7_exchange,
        table_8_mla,
        table_10_gemm,
        table_11_switches,
        figure_20_decode_microbatch,
        figure_21_prefill_microbatch,
        figure_22_mtp,
        figure_23_context_cache,
        figure_24_allocation,
        xdeepserve_peak,
        xdeepserve_split,
        xdeepserve_production,
    )
)


def choose(names: Sequence[str]) -> tuple[Experiment, ...]:
    """Experiments by name, in our order; all if none is named.

    Raises: ConfigError for a name that no experiment has.
    """
    known = [experiment.name for experiment in EXPERIMENTS]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "see `cloudmatrix reproduce --list`"
            raise ConfigError(f"there is no experiment {name!r}; {hint}")
    return tuple(experiment for experiment in EXPERIMENTS if not names or experiment.name in names)
