"""The R1 day with one decode instance that grows and shrinks by parts, beside two static splits, for pauses assumed.

What a change of size costs is the cost model's, but for the pause, which is ASSUMED: nobody has published one for a
group that grows while it serves on these NPUs. The nearest: 10 s where one NPU was lost (ReviveMoE), 11 s in EEP.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.autoscaling.loads import Load, resized
from tests.benchmarks.autoscaling.play import print_trial
from tests.benchmarks.autoscaling.trial import Split, Trial, autoscaled, static
from tests.benchmarks.conditions import progress

STEP, FEWEST, FIRST, MOST = 8, 24, 48, 96
"""NPUs of a part, and of the instance: at least, at the start, at most."""
WARM = 64
"""NPUs of the platform with a process that waits."""
GRAPHS_S = 8.0
"""Loading compiled graphs: cached ones take 8 s. Source: ReviveMoE."""
SEATS = 96
"""Sequences that an NPU can hold."""
_TODAY = Split(1, 4)
"""The best of instances of 32 NPUs, found by `bench_autoscaler` without options."""
_SIZES = range(64, MOST + 1, STEP)


def play_parts(load: Load, pauses_s: Sequence[float]) -> dict[str, object]:
    """Play and print, a line for each. Returns: way -> figures."""
    needed = load.config.slo.attainment
    progress(f"{load.name}: {_TODAY.prefill} x 16 + {_TODAY.decode} x 32 NPUs")
    today = static(load, _TODAY)[0]
    best = _best_size(load, needed)
    trials = [replace(today, way="1 x 16 + 4 x 32 NPUs"), best]
    for pause_s in pauses_s:
        progress(f"{load.name}: parts, pause {pause_s:g} s")
        trials.append(replace(autoscaled(parts(load, pause_s), "slo")[0], way=f"parts, pause {pause_s:g} s"))
    for trial in trials:
        print_trial(load, trial, today, best)
    return {trial.way: dataclasses.asdict(trial) for trial in trials}


def parts(load: Load, pause_s: float) -> Load:
    """The load on one prefill instance or more, and one decode instance that changes its size."""
    config = resized(load, FIRST).config
    scaler = replace(config.autoscaler, decode_step_npus=STEP, min_decode_npus=FEWEST, max_decode_npus=MOST)
    simulation = replace(config.simulation, warm_npus=WARM, graphs_s=GRAPHS_S, resize_pause_s=pause_s)
    decode = replace(config.decode, replicas=1, max_sequences=SEATS * FIRST)
    return replace(load, config=replace(config, autoscaler=scaler, simulation=simulation, decode=decode))


def _best_size(load: Load, needed: float) -> Trial:
    """The smallest single decode instance that keeps what is asked, beside one of prefill.

    Several smaller ones of as many NPUs do less.
    """
    for npus in _SIZES:
        progress(f"{load.name}: 1 x 16 + 1 x {npus} NPUs")
        one = resized(load, npus)
        decode = replace(one.config.decode, max_sequences=SEATS * npus)
        trial, _ = static(replace(one, config=replace(one.config, decode=decode)), Split(1, 1), needed)
        if not trial.given_up and trial.attainment >= needed:
            return replace(trial, way=f"1 x 16 + 1 x {npus} NPUs")
    raise SystemExit(f"no decode instance of up to {MOST} NPUs keeps {needed:.0%} of {load.name}")
