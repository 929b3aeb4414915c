"""An engine stepped by hand over a native executor, with steps planned ahead or not."""

from collections.abc import Callable, Iterable
from functools import partial

from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.values.news import Tokens
from serving.values.sequence import FinishReason, SequenceSpec
from serving.values.step_plan import StepResult
from tests.fakes.engine_calls import EngineCalls


def run_engine(
    executor: NativeExecutor, settings: EngineSettings, blocks: int, specs: Iterable[SequenceSpec], *, ahead: bool
) -> tuple[dict[SequenceId, tuple[int, ...]], dict[SequenceId, FinishReason], EngineCalls, int]:
    """Outputs and ends of sequences that arrive together, their engine, and the number of steps that ran as planned
    ahead.

    Steps after one that produced draft tokens are planned again, as the loop does.
    """
    engine = EngineCalls(settings, blocks)
    for spec in specs:
        assert engine.add(spec, 0.0) is None
    run: Callable[[], StepResult] | None = None
    prepared = 0
    while not engine.idle():
        if run is None:
            plan = engine.next_action(0.0).plan
            assert plan is not None
            run = partial(executor.execute, plan)
        foreseen = engine.foresee(0.0) if ahead else None
        following = executor.prepare(foreseen) if foreseen is not None else None
        result = run()
        if following is None or any(one.drafts for one in result.results):
            engine.step_finished(result, 0.0)
            following = None
        else:
            engine.step_followed(result, 0.0)
            prepared += 1
        run = following
    outputs: dict[SequenceId, tuple[int, ...]] = {}
    ends: dict[SequenceId, FinishReason] = {}
    for event in engine.take_events():
        assert isinstance(event, Tokens)
        outputs[event.sequence_id] = outputs.get(event.sequence_id, ()) + event.tokens
        if event.finish_reason is not None:
            ends[event.sequence_id] = event.finish_reason
    return outputs, ends, engine, prepared
