"""All experiments, in the order of the papers."""

from collections.abc import Sequence
from difflib import get_close_matches

from serving.errors import ConfigError
from serving.tools.paper import (
    caching,
    decode_results,
    expert_layouts,
    experts_apart,
    operators,
    other_systems,
    prefill_results,
    stated_error,
    ub_fabric,
    xdeepserve,
)
from serving.tools.paper.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    ub_fabric.TABLE_1,
    caching.TABLE_2,
    prefill_results.TABLE_3,
    decode_results.TABLE_4,
    decode_results.TABLE_5,
    operators.TABLE_7,
    operators.TABLE_8,
    operators.TABLE_10,
    ub_fabric.TABLE_11,
    decode_results.FIGURE_20,
    prefill_results.FIGURE_21,
    decode_results.FIGURE_22,
    caching.FIGURE_23,
    ub_fabric.FIGURE_24,
    xdeepserve.PEAK,
    xdeepserve.SPLIT,
    expert_layouts.SEND,
    expert_layouts.EPLB,
    expert_layouts.WAITS,
    expert_layouts.REVIVE,
    expert_layouts.RATIO,
    expert_layouts.ZONE,
    experts_apart.APART,
    stated_error.STATED,
    other_systems.OTHER_SYSTEMS,
    xdeepserve.PRODUCTION,  # the longest one is last
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
