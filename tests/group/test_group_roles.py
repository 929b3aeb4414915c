"""Attention ranks and expert ranks produce the tokens, and the exact bits, of one process with all experts."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from safetensors.torch import load_file

from hardware.ub.exchange_layout import LINE, MICRO_BATCHES, WindowLayout, read_shape
from serving.config.experts import ExpertsConfig
from serving.errors import ConfigError, EngineError, GroupError
from serving.ids import SequenceId
from serving.model.config import read_architecture
from serving.model.native.layout import MAP_MASKED
from serving.values.sequence import SequenceSpec
from tests.cases.nightly import mostly_nightly
from tests.group.rank_threads import LONG_SETTINGS, SETTINGS, checkpoint, long_specs
from tests.group.split_group import CONFIG, FIRST_EXPERT, Setting, SplitGroup, order_from, specs_of, with_drafts
from tests.instance.native_pair import native_or_skip
from tests.model.int8_checkpoint import int8_checkpoint
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import GPT_OSS


@pytest.fixture(autouse=True)
def _native() -> None:
    native_or_skip()


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as name:
        yield Path(name)


LAYOUTS = ((1, 1), (2, 1), (1, 2), (3, 2), (1, 3))
KINDS = ("bfloat16", "float32", "int8", "w8a16")
FEATURES = ("plain", "grammar", "logprobs", "prefix", "chunks")
SHARED = ("attention", "experts")
"""Ranks that compute shared experts."""
COVERING = [  # every pair of two columns, as far as twenty rows can
    (*LAYOUTS[i], KINDS[(i + j) % 4], (2 * i + j) % 4, FEATURES[(i + 2 * j) % 5], SHARED[(i // 2 + j) % 2])
    for i in range(5)
    for j in range(4)
]
PRODUCT = [
    (*layout, kind, drafts, feature, shared)
    for layout in LAYOUTS
    for kind in KINDS
    for drafts in range(4)
    for feature in FEATURES
    for shared in SHARED
]
QUICK = [COVERING[0], COVERING[5], COVERING[10], COVERING[14], COVERING[19]]


def setting_of(folder: Path, kind: str, drafts: int, feature: str, **more: Any) -> Setting:
    made, _ = checkpoint("int8" if kind == "w8a16" else kind, folder)
    settings = with_drafts(SETTINGS, drafts)
    if feature == "chunks":
        settings = replace(settings, max_step_tokens=8 + 4 * drafts, max_sequences=2)
    return Setting(made, settings=replace(settings, forced_tokens=8 * (feature == "grammar")), **more)


def assert_exact(setting: Setting, shm: Path, feature: str = "plain") -> None:
    work = {rank: specs_of(rank, feature) for rank in range(setting.attention)}
    wanted = setting.alone([spec for specs in work.values() for spec in specs])
    with SplitGroup(setting, shm) as group:
        assert group.run(work) == wanted
        for parts, _ in group.attention.values():
            sessions = parts.sessions()
            assert sessions.rounds > 0
            assert min(sessions.parts.values()) > 0.0


@pytest.mark.parametrize(
    ("attention", "experts", "kind", "drafts", "feature", "shared"),
    mostly_nightly(sorted({*COVERING, *PRODUCT}), QUICK, "tests/group/test_group_roles.py::test_every_layout_is_exact"),
)
def test_every_layout_is_exact(
    attention: int, experts: int, kind: str, drafts: int, feature: str, shared: Any, tmp_path: Path, shm: Path
) -> None:
    """Forms, draft tokens and what is asked of them; latent attention of an INT8 checkpoint is W8A16 in bfloat16."""
    setting = setting_of(tmp_path, kind, drafts, feature, attention=attention, experts=experts)
    config = replace(setting.config, micro_batches="2" if drafts % 2 else "1", shared=shared)
    setting = replace(setting, config=config)
    assert_exact(setting, shm, feature)


SHARED_AWAY = replace(CONFIG, shared="experts")


def test_fused_experts(tmp_path: Path, shm: Path) -> None:
    """They have forms that only torch reads."""
    folder, _ = checkpoint("bfloat16", tmp_path, **GPT_OSS)
    assert_exact(Setting(folder, 2, 2), shm)


@pytest.mark.parametrize("config", [CONFIG, SHARED_AWAY])
def test_rounded_results(config: ExpertsConfig, tmp_path: Path, shm: Path) -> None:
    """Results of shared experts are not rounded. Two of them are one network, wider than a routed expert."""
    folder, _ = checkpoint("bfloat16", tmp_path, n_shared_experts=2)
    assert_exact(Setting(folder, 2, 2, bf16_results=True, config=config), shm)


def routed_in_int8(folder: Path) -> Path:
    """A checkpoint whose routed experts are INT8, and nothing else."""
    write_random_checkpoint(folder, dtype="bfloat16")
    stored = load_file(folder / "model.safetensors")
    return int8_checkpoint(folder, [name for name in stored if ".mlp.experts." in name], write=False)


@pytest.mark.parametrize("why", ["has no shared ones", "rows of different forms"])
def test_an_attention_rank_without_such_shared_experts_cannot_join(why: str, tmp_path: Path, shm: Path) -> None:
    folder, _ = checkpoint("bfloat16", tmp_path / "experts")
    if why == "has no shared ones":
        other, _ = checkpoint("bfloat16", tmp_path / "other", n_shared_experts=0)
    else:
        other = routed_in_int8(tmp_path / "other")
    expert = Setting(folder, config=SHARED_AWAY).expert_rank(FIRST_EXPERT, shm)
    parts, _ = Setting(other, config=SHARED_AWAY).attention_rank(0, shm)
    with pytest.raises(GroupError, match=why):
        parts.follow(order_from((parts.offer("x"), expert.offer("x")), 1, 1))
    parts.close()
    expert.close()


def test_shared_experts_that_expert_ranks_cannot_have(tmp_path: Path, shm: Path) -> None:
    folder, _ = checkpoint("bfloat16", tmp_path / "none", n_shared_experts=0)
    with pytest.raises(ConfigError, match="has no shared experts: set it to"):
        Setting(folder, config=SHARED_AWAY).expert_rank(FIRST_EXPERT, shm)
    folder = routed_in_int8(tmp_path / "int8")
    with pytest.raises(ConfigError, match="shared or routed, is INT8"):
        Setting(folder, config=SHARED_AWAY).expert_rank(FIRST_EXPERT + 1, shm)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_long_prompts_beside_decodes(kind: str, tmp_path: Path, shm: Path) -> None:
    """Experts compute their rows in pieces, and others' rows in between."""
    folder, _ = checkpoint(kind, tmp_path, moe_intermediate_size=1024)
    work = {0: specs_of(0, "plain"), 1: long_specs()}
    setting = Setting(folder, 2, 1, settings=LONG_SETTINGS)
    wanted = setting.alone([spec for specs in work.values() for spec in specs])
    with SplitGroup(setting, shm) as group:
        assert group.run(work) == wanted


@pytest.mark.parametrize("experts", [1, 2])
def test_attention_ranks_join_leave_and_come_again_without_an_epoch(experts: int, tmp_path: Path, shm: Path) -> None:
    setting = setting_of(tmp_path, "bfloat16", 0, "plain", attention=2, experts=experts)
    first, second = specs_of(0, "plain"), specs_of(1, "plain")
    wanted = setting.alone([*first, *second])
    with SplitGroup(setting, shm) as group:
        steps: list[int] = []

        def between(rank: int, step: int) -> None:
            """While rank 0 computes, rank 1 leaves, comes again as another process, and is joined by a third."""
            steps.append(step)
            if step in (2, 5):
                group.leave(1)
            if step in (3, 6):
                group.join(1)
            if step == 4:
                group.join(2)

        found = group.run({0: first}, between)
        assert len(steps) == max(steps) + 1 > 7, "no step was repeated"
        found |= group.run({1: second})
        found |= group.run({2: [replaced(spec) for spec in second]})
        window = group.experts[FIRST_EXPERT]._own
        assert window is not None
        words = WindowLayout.of(read_shape(window.memory)).words
        second_asks = [words + (MICRO_BATCHES * rank + 1) * LINE for rank in range(3)]
        assert all(any(window.memory[at : at + 8]) for at in second_asks), "all have asked for a second micro-batch"
        assert {name: answer for name, answer in found.items() if not name.startswith("again")} == wanted
        assert all(found[SequenceId(f"again-{name}")] == wanted[name] for name in (spec.sequence_id for spec in second))
        assert {rank.raised for rank in group.members} == {1}


def replaced(spec: SequenceSpec) -> SequenceSpec:
    return SequenceSpec(SequenceId(f"again-{spec.sequence_id}"), spec.prompt, spec.sampling)


def test_a_lost_expert_rank_is_made_up_for_from_the_reserve(tmp_path: Path, shm: Path) -> None:
    setting = setting_of(tmp_path, "float32", 2, "plain", attention=2, experts=2, config=SHARED_AWAY)
    work = {rank: specs_of(rank, "plain") for rank in range(2)}
    wanted = setting.alone([spec for specs in work.values() for spec in specs])
    with SplitGroup(setting, shm) as group:
        lost = group.experts[FIRST_EXPERT + 1]

        def between(rank: int, step: int) -> None:
            if (rank, step) == (0, 4):
                lost.stop()
                del group.experts[FIRST_EXPERT + 1]
                group.begin_epoch()

        assert group.run(work, between) == wanted
        lost.close()
        assert {rank.raised for rank in group.members} == {2}


def test_what_an_expert_rank_cannot_answer_ends_its_loop(tmp_path: Path, shm: Path) -> None:
    """A map of an attention rank that sends rows to an empty slot."""
    setting = setting_of(tmp_path, "float32", 0, "plain")
    with SplitGroup(replace(setting, config=replace(setting.config, deadline_s=0.5)), shm) as group:
        executor, expert = group.attention[0][1], group.experts[FIRST_EXPERT]
        table = group.attention[0][0].experts.prepare(order_map(group))
        table[:] = FIRST_EXPERT << 16 | 9  # the first layer's reserve is empty
        executor.group.set_map(7, table)
        with pytest.raises(GroupError, match=f"rank {FIRST_EXPERT} of the group: late"):
            group.run({0: specs_of(0, "plain")})
        expert._thread.join(60.0)
        assert "rank 0 of the group: mismatch" in expert.failed()


def order_map(group: SplitGroup) -> Any:
    order = group.attention[0][0].order
    assert order is not None
    return order.map


def test_shared_experts_are_no_choice_of_a_masked_gate(tmp_path: Path, shm: Path) -> None:
    """A map may leave as many routed experts as a row takes, no fewer."""
    setting = setting_of(tmp_path, "float32", 0, "plain", config=SHARED_AWAY)
    shape = read_architecture(setting.folder).experts
    assert shape is not None
    with SplitGroup(setting, shm) as group:
        parts, executor = group.attention[0]
        table = parts.experts.prepare(order_map(group))
        table[:, :, shape.per_token :] = MAP_MASKED
        executor.group.set_map(7, table)
        table[:, :, shape.per_token - 1] = MAP_MASKED
        with pytest.raises(EngineError, match=f"leave fewer than {shape.per_token}"):
            executor.group.set_map(8, table)


def test_a_map_that_names_an_attention_rank_is_never_used(tmp_path: Path, shm: Path) -> None:
    setting = setting_of(tmp_path, "float32", 0, "plain", attention=2)
    with SplitGroup(replace(setting, config=replace(setting.config, deadline_s=0.5)), shm) as group:
        table = group.attention[0][0].experts.prepare(order_map(group))
        table[:] = 1 << 16
        group.attention[0][1].group.set_map(7, table)
        with pytest.raises(GroupError, match="rank 1 of the group: mismatch"):
            group.run({0: specs_of(0, "plain")})


def test_only_expert_ranks_admit_and_only_attention_ranks_are_admitted(tmp_path: Path, shm: Path) -> None:
    setting = setting_of(tmp_path, "float32", 0, "plain", experts=2)
    with SplitGroup(setting, shm) as group:
        executor, expert = group.attention[0][1], group.experts[FIRST_EXPERT]
        window = group.experts[FIRST_EXPERT + 1]._own
        assert window is not None
        with pytest.raises(EngineError, match=f"rank {FIRST_EXPERT + 1} cannot join without an epoch"):
            expert._served.admit(FIRST_EXPERT + 1, window.memory)
        with pytest.raises(EngineError, match="window of rank 1 is of another model"):
            expert._served.admit(1, window.memory)
        with pytest.raises(EngineError, match="cannot leave this rank's group without an epoch"):
            executor.group.drop(FIRST_EXPERT)


def test_ranks_of_other_nodes_are_refused_by_one_that_does_not_listen(tmp_path: Path, shm: Path) -> None:
    setting = setting_of(tmp_path, "float32", 0, "plain")
    (parts, _), expert = setting.attention_rank(0, shm), setting.expert_rank(FIRST_EXPERT, shm)
    offers = parts.offer("x"), structs.replace(expert.offer("x"), node="elsewhere", carrier=("127.0.0.1", 9))
    with pytest.raises(GroupError, match=r"rank 4 is on node elsewhere, and rank 0 on near: one of them takes no"):
        parts.follow(order_from(offers, 1, 1))
    parts.close()
    expert.close()


def test_an_expert_rank_imports_no_torch() -> None:
    code = "import sys, serving.group.compute.expert_rank; print({'torch', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
