"""Ranks that compute together produce the tokens, and the exact bits, of one process with all experts."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from hardware.ub.exchange_layout import LINE, WindowLayout
from serving.errors import EngineError, GroupError, ModelError
from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.model.native.layout import MAP_MASKED
from serving.model.native.library import load
from serving.model.native.rank_group import raise_epoch
from serving.values.expert_map import ExpertWork
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import (
    LONG_SETTINGS,
    SETTINGS,
    MappedSlots,
    RankThreads,
    checkpoint,
    drive,
    long_specs,
    prompts,
)
from tests.instance.native_grammars import grammar_sampling
from tests.instance.native_pair import RAGGED, dirty_cache, load_for_native, native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import GPT_OSS

DRAFTING = replace(SETTINGS, draft_tokens=2, speculation=True)


@pytest.fixture(autouse=True)
def _native() -> None:
    native_or_skip()


def requests(ranks: int, draw: int, each: int = 4, **sampling: Any) -> list[list[SequenceSpec]]:
    """Requests for every rank but the last, which only serves; the first has most."""
    rng = Random(draw)
    work = []
    for rank in range(ranks):
        count = 0 if rank == ranks - 1 else each if rank else 2 * each
        specs = [
            SequenceSpec(
                SequenceId(f"{rank}-{number}"),
                tuple(prompt),
                SamplingParams(**({"max_tokens": rng.randrange(1, 14), "temperature": 0.0} | sampling)),
            )
            for number, prompt in enumerate(prompts(count, rng))
        ]
        work.append(specs)
    return work


def assert_exact(group: RankThreads, work: list[list[SequenceSpec]]) -> None:
    wanted = group.alone([spec for specs in work for spec in specs])
    found = {name: answer for answers in group.together(work) for name, answer in answers.items()}
    assert found == wanted


@pytest.mark.parametrize(("kind", "ranks"), [("float32", 2), ("int8", 3), ("float32", 4), ("bfloat16", 8)])
def test_all_layouts_and_forms(kind: str, ranks: int, tmp_path: Path) -> None:
    folder, dtype = checkpoint(kind, tmp_path)
    assert_exact(RankThreads(folder, dtype, ranks, seed=ranks), requests(ranks, draw=ranks))


def test_long_prompts_beside_decodes(tmp_path: Path) -> None:
    folder, dtype = checkpoint("bfloat16", tmp_path, moe_intermediate_size=1024)
    work = [requests(2, draw=7)[0], long_specs()]
    assert_exact(RankThreads(folder, dtype, 2, settings=LONG_SETTINGS), work)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_experts_with_biases_and_clamped_gates(kind: str, tmp_path: Path) -> None:
    folder, dtype = checkpoint(kind, tmp_path, **GPT_OSS)
    assert_exact(RankThreads(folder, dtype, 3), requests(3, draw=4))


@pytest.mark.parametrize(
    ("more", "drafting"),
    [
        ({"temperature": 0.8, "seed": 7, "top_p": 0.9}, True),
        ({"temperature": 1.0, "seed": 3, "logprobs": 2}, False),
        ({"logprobs": 0, "prompt_logprobs": 1}, True),
        ({"repetition_penalty": 1.2}, False),
    ],
)
def test_draws_penalties_and_log_probabilities(more: dict[str, Any], drafting: bool, tmp_path: Path) -> None:
    """With draft tokens, and with second calls for sequences whose token is drawn in Python: all differ by rank."""
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    group = RankThreads(folder, "bfloat16", 3, seed=5, settings=DRAFTING if drafting else SETTINGS)
    work = requests(3, draw=9)
    work[1] = requests(3, draw=10, **more)[1]
    assert_exact(group, work)


@pytest.mark.parametrize("settings", [SETTINGS, DRAFTING], ids=["plain", "drafting"])
def test_grammars(settings: EngineSettings, tmp_path: Path) -> None:
    """Their masks are built in the group's steps, which draft forced tokens; alone, in Python."""
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    group = RankThreads(folder, "bfloat16", 3, seed=6, settings=replace(settings, forced_tokens=8))
    work = requests(3, draw=11, each=3)
    for specs in work:
        specs[:] = [structs.replace(spec, sampling=grammar_sampling(i)) for i, spec in enumerate(specs)]
    assert_exact(group, work)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_guesses_in_every_form(kind: str, tmp_path: Path) -> None:
    folder, dtype = checkpoint(kind, tmp_path)
    group = RankThreads(folder, dtype, 2, settings=DRAFTING)
    work = requests(2, draw=1)
    work[1] = requests(2, draw=2)[0][:3]
    assert_exact(group, _renamed(work))


@pytest.mark.parametrize(
    ("kind", "shape", "more"),
    [
        ("bfloat16", {}, {"short": True}),
        ("bfloat16", RAGGED, {}),
        ("int8", RAGGED, {}),
        ("float32", RAGGED, {"threads": 2}),
        ("int8", {}, {"kv_dtype": "int8", "threads": 3}),
        ("bfloat16", {"n_shared_experts": 0}, {}),
        ("float32", RAGGED, {"bf16_results": True}),
        ("int8", {}, {"bf16_results": True, "threads": 2}),
        ("float32", {"n_routed_experts": 32, "num_experts_per_tok": 6}, {}),
    ],
)
def test_other_shapes_and_settings(kind: str, shape: dict[str, Any], more: dict[str, Any], tmp_path: Path) -> None:
    folder, dtype = checkpoint(kind, tmp_path, **shape)
    assert_exact(RankThreads(folder, dtype, 3, seed=2, **more), requests(3, draw=4))


@pytest.mark.parametrize(("kind", "settings"), [("bfloat16", DRAFTING), ("int8", SETTINGS)])
def test_two_micro_batches_a_step(kind: str, settings: EngineSettings, tmp_path: Path) -> None:
    folder, dtype = checkpoint(kind, tmp_path)
    group = RankThreads(folder, dtype, 3, seed=3, settings=settings)
    for executor in group.executors:
        executor.use_micro_batches(2)
    assert_exact(group, requests(3, draw=5))
    words = WindowLayout.of(group.executors[0].group.window_shape(3)).words
    second = LINE  # of kind "ask", by rank 0: its first micro-batch comes before
    for window in group.windows[1:]:
        assert any(window[words + second : words + second + 8]), "rank 0 has asked for its second micro-batch"


def test_more_rows_come_than_a_rank_computes_at_once(tmp_path: Path) -> None:
    """All experts are on one rank: it processes the rows of eight ranks in pieces."""
    folder, dtype = checkpoint("bfloat16", tmp_path)
    group = RankThreads(folder, dtype, 8, copies=0.0, homes=[3])
    work = _renamed([requests(2, draw=seed, each=3)[0] for seed in range(8)])
    assert_exact(group, work)


def test_a_new_map_while_tokens_flow(tmp_path: Path) -> None:
    """Every rank gets it at another step and uses it at once, whatever the others use."""
    folder, dtype = checkpoint("bfloat16", tmp_path)
    group = RankThreads(folder, dtype, 3, seed=1)
    maps = [group.other_map(seed) for seed in range(6)]
    work = _renamed([requests(2, draw=seed)[0] for seed in range(3)])
    wanted = group.alone([spec for specs in work for spec in specs])
    versions = set()

    def between(rank: int, step: int) -> None:
        executor = group.executors[rank]
        versions.add(executor.group.map_version)
        number = (step - rank) // 4
        if (step - rank) % 4 == 0 and 0 <= number < len(maps):
            executor.group.set_map(number + 2, maps[number])

    found = {name: answer for answers in group.together(work, between) for name, answer in answers.items()}
    assert found == wanted
    assert len(versions) > 3


@pytest.mark.parametrize("rounded", [False, True])
def test_bytes_and_time_of_the_exchange_are_counted_by_peer(rounded: bool, tmp_path: Path) -> None:
    """All experts lie with rank 1, which has no rows of its own and waits for nobody."""
    folder = write_random_checkpoint(tmp_path)
    group = RankThreads(folder, "float32", 2, copies=0.0, homes=[1], bf16_results=rounded)
    group.together([requests(2, draw=3)[0], []])
    source, home = (executor.group.exchanged() for executor in group.executors)
    rows, hidden = int(group.executors[0].group.rows_sent().sum()), group.executors[0].model.config.hidden_size
    assert source.sent_bytes[0] == source.returned_bytes[0] == 0, "what stays here is no exchange"
    assert source.returned_bytes[1] == rows * hidden * (2 if rounded else 4) > 0
    assert source.sent_bytes[1] == rows * group.executors[0].group.window_shape(2).row_bytes
    assert home.sent_bytes == home.returned_bytes == (0, 0)
    assert source.waited_s[0] == sum(home.waited_s) == 0.0, "no rank waits for itself, or for rows"
    assert source.waited_s[1] > 0
    assert min(source.worked_s, home.worked_s) > 0
    assert source.work == ExpertWork(), "it has no experts"
    assert home.work.rows == rows
    assert 0 < home.work.nets <= rows
    assert 0 < home.work.seconds < home.worked_s


def test_a_peer_that_never_comes_is_named(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 3, deadline_s=0.05)
    assert group.executors[0].group.awaited() is None
    with pytest.raises(GroupError, match=r"step 0 failed: rank [12] of the group: late, in step 0, round 1"):
        drive(group.executors[0], requests(2, draw=0)[0], SETTINGS)
    with pytest.raises(GroupError, match="late"):  # out of step until the shell starts a new epoch
        group.executors[0].serve(1.0)


@pytest.mark.real_time
def test_who_is_waited_for_is_seen_meanwhile(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 2, deadline_s=0.5)
    executor = group.executors[0]

    def wait() -> None:
        with pytest.raises(GroupError, match="rank 1 of the group: late"):
            drive(executor, requests(2, draw=0)[0], SETTINGS)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive() and ((found := executor.group.awaited()) is None or found[1] < 0.02):
        time.sleep(0.001)
    assert found is not None
    assert found[0] == 1
    waiting.join()
    assert executor.group.awaited() is None


def test_an_idle_rank_is_woken_and_not_kept(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 2)
    executor = group.executors[0]
    executor.serve(0.01)
    executor.wake()
    executor.serve(3600.0)
    timer = threading.Timer(0.05, executor.wake)
    timer.start()
    executor.serve(3600.0)
    timer.join()
    assert executor.group.awaited() is None


def test_a_map_that_sends_rows_to_a_former_member_is_never_used(tmp_path: Path) -> None:
    """Members without the map of an epoch compute nothing, rather than without the experts of the removed member."""
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 3, copies=0.0, deadline_s=0.5)
    library = load()
    assert library is not None
    failed: list[str] = []

    def serve(rank: int) -> None:
        with pytest.raises(GroupError) as caught:
            group.executors[rank].serve(60.0)
        failed.append(str(caught.value))

    for rank in (0, 1):
        raise_epoch(library, group.windows[rank], 2, 0b011)
    group.executors[1].group.set_map(2, group.other_map(2), 2)
    threads = [threading.Thread(target=serve, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["rank 2 of the group: mismatch" in one for one in failed] == [True, True], failed


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 2)
    executor, place = group.executors[0], group.places[0]
    with pytest.raises(EngineError, match="expert map 1 is not newer"):
        executor.group.set_map(1, group.spread.expert_map)
    wrong = group.spread.expert_map.copy()
    wrong[1, 3, 5] = 0 << 16 | len(place.slots.gate_up) - 1
    with pytest.raises(EngineError, match=r"expert 5 of layer 1: slot .* of rank 0 does not hold it"):
        executor.group.set_map(2, wrong)
    for position in (3, slice(None)):
        masked = group.spread.expert_map.copy()
        masked[1, position] = MAP_MASKED
        with pytest.raises(EngineError, match=r"layer 1: masked experts differ by position, or leave fewer than \d+"):
            executor.group.set_map(2, masked)
    wrong[1, 3, 5] = 2 << 16
    with pytest.raises(EngineError, match="slot 0 of rank 2 does not hold it"):
        executor.group.join(replace(place, expert_map=wrong))
    with pytest.raises(ModelError, match="an expert map of"):
        executor.group.set_map(2, wrong[:, :1])
    with pytest.raises(EngineError, match="window of rank 0 is of another model"):
        executor.group.join(replace(place, windows=[place.windows[1], place.windows[0]]))
    with pytest.raises(EngineError, match="rank 2 of 2"):
        executor.group.join(replace(place, rank=2))
    swapped = MappedSlots(place.slots.down, place.slots.gate_up)
    with pytest.raises(EngineError, match="slot 0 holds no expert of this model"):
        executor.group.join(replace(place, slots=swapped))
    with pytest.raises(EngineError, match="65 ranks"):
        executor.group.window_shape(65)


def test_a_model_without_experts_makes_no_group(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, first_k_dense_replace=3, num_nextn_predict_layers=0)
    model = load_for_native(folder, "float32")
    executor = NativeGroupExecutor(model, dirty_cache(model), threads=1, max_rows=8)
    with pytest.raises(EngineError, match="no routed experts"):
        executor.group.window_shape(2)


def test_idle_ranks_take_up_a_new_map_and_know_which_one_all_use(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 3, deadline_s=20.0)
    stop = threading.Event()

    def idle(executor: NativeGroupExecutor) -> None:
        while not stop.is_set():
            executor.serve(3600.0)

    threads = [threading.Thread(target=idle, args=(executor,)) for executor in group.executors]
    for thread in threads:
        thread.start()
    try:
        for version, rank in ((2, 0), (3, 0), (2, 1), (2, 2), (3, 1)):  # a rank may be a map ahead
            group.executors[rank].group.set_map(version, group.other_map(version))
        until(lambda: {executor.group.map_version for executor in group.executors} == {2})
        group.executors[2].group.set_map(3, group.other_map(3))
        until(lambda: {executor.group.map_version for executor in group.executors} == {3})
    finally:
        stop.set()
        for executor in group.executors:
            executor.wake()
        for thread in threads:
            thread.join()


def test_a_map_waits_for_its_epoch_and_not_for_one_that_was_passed_over(tmp_path: Path) -> None:
    group = RankThreads(write_random_checkpoint(tmp_path), "float32", 2)
    library = load()
    assert library is not None

    def versions(epoch: int) -> list[int]:
        for executor, window in zip(group.executors, group.windows, strict=True):
            raise_epoch(library, window, epoch, 0b11)
            executor.serve(0.01)
        return [executor.group.map_version for executor in group.executors]

    for executor in group.executors:
        executor.group.set_map(2, group.other_map(2), epoch=3)
        executor.group.set_map(4, group.other_map(4), epoch=4)
    group.executors[0].group.set_map(5, group.other_map(5), epoch=4)
    assert versions(2) == [1, 1]
    assert versions(3) == [2, 2]
    assert versions(4) == [4, 4], "of the two that are used the older one"
    with pytest.raises(EngineError, match="expert map 5 is not newer"):
        group.executors[0].group.set_map(5, group.other_map(5))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _renamed(work: list[list[SequenceSpec]]) -> list[list[SequenceSpec]]:
    return [
        [SequenceSpec(SequenceId(f"{rank}-{number}"), spec.prompt, spec.sampling) for number, spec in enumerate(specs)]
        for rank, specs in enumerate(work)
    ]
