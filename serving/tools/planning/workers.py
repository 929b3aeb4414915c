"""Concurrent simulations in processes; results do not depend on their number."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from serving import compiled
from serving.tools.planning.measure import PlanSetting, measure
from serving.tools.planning.verdict import Evaluate, PlanProbe, PlanVerdict

Tell = Callable[[PlanProbe, PlanVerdict], None]
"""Called with each finished simulation, in the order of the requests."""


@contextmanager
def evaluator(setting: PlanSetting, processes: int, tell: Tell) -> Iterator[Evaluate]:
    """Evaluator for a search. Each probe is simulated once: the same question gets the same result.

    Args:
        processes: 1 = none but this one.
    Effects: processes while it is open; they are started fresh, so that no thread or lock is inherited.
    """
    answers: dict[PlanProbe, PlanVerdict] = {}
    if processes == 1:
        yield partial(_evaluate, answers, tell, lambda probes: (measure(setting, one) for one in probes))
        return
    context = multiprocessing.get_context("spawn")
    begin, folder = compiled.begin_worker, compiled.in_use()
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=(folder,)) as pool:
        yield partial(_evaluate, answers, tell, lambda probes: pool.map(partial(measure, setting), probes))


def _evaluate(
    answers: dict[PlanProbe, PlanVerdict],
    tell: Tell,
    run: Callable[[Sequence[PlanProbe]], Iterator[PlanVerdict]],
    probes: Sequence[PlanProbe],
) -> list[PlanVerdict]:
    new = [one for one in dict.fromkeys(probes) if one not in answers]
    for probe, verdict in zip(new, run(new), strict=True):
        answers[probe] = verdict
        tell(probe, verdict)
    return [answers[one] for one in probes]
