"""Imports go down the list of layers, and the pure parts stay pure."""

import pytest

from tests.architecture.import_rules import (
    banned_imports,
    folder_circles,
    foreign_imports,
    import_circles,
    importers_outside,
    imports_across,
    imports_of_tests,
    reached_outside,
    upward_imports,
)
from tests.architecture.source_tree import Source, read_sources, within

LAYERS = (
    "hardware",
    "loadgen",
    "serving",
    "serving.values",
    "serving.grammar",
    "serving.config",
    "serving.faults",
    "serving.sockets",
    "serving.telemetry",
    "serving.kvevents",
    "serving.kvpool.core",
    "serving.group.core",
    "serving.scaling.core",
    "serving.instance.core",
    "serving.gateway.core",
    "serving.model",
    "serving.wire",
    "serving.cluster",
    "serving.kvpool.live",
    "serving.instance.executors",
    "serving.group.compute",
    "serving.gateway.api",
    "serving.instance.live",
    "serving.group.live",
    "serving.scaling.live",
    "serving.scaling.dashboard",
    "serving.gateway.live",
    "serving.client",
    "serving.launch",
    "serving.virtual",
    "serving.tools",
    "serving.cli",
)
PARTIES = ("serving.gateway", "serving.instance", "serving.kvpool", "serving.scaling", "serving.group")
ROOTS = ("hardware", "serving", *PARTIES, "serving.tools", "loadgen")

OFFERED = {
    "serving.group.compute.rank_parts": "compute of an instance that is a rank",
    "serving.group.core.rank_life": "when a rank begins, serves and leaves",
    "serving.instance.executors.group_executor": "a rank's part of a step",
    "serving.instance.live.collector": "a rank's process collects garbage as an instance's does",
    "serving.instance.live.compute": "a rank's place in its group",
    "serving.instance.live.gentle": "a rank is built while its peers compute",
    "serving.instance.live.instance": "a rank is an instance",
    "serving.instance.live.pool_access": "an expert rank reads the image of the weights",
    "serving.group.core.expert_status": "groups of ranks in numbers, for status pages",
    "serving.gateway.api.tokenizer": "simulated instances answer in words",
    "serving.kvpool.core.ring": "shares of the ring, for status pages",
    "serving.kvpool.live.pool_client": "the pool's client",
    "serving.kvpool.live.context_cache": "the pool's client",
    "serving.kvpool.core.entry": "the space of a tenant's blocks, in requests of a gateway",
    "serving.kvpool.core.messages": "the pool's client",
    "serving.kvpool.core.server_backoff": "a gateway's links to memory servers, which wait for none of them",
    "serving.kvpool.live.frames": "the same",
    "serving.kvpool.core.pool_facts": "the pool's announcements in numbers, for metrics",
    "serving.kvpool.live.model_cache": "the pool's client",
    "serving.kvpool.live.pool_control": "the pool's directory, which everybody asks",
    "serving.kvpool.live.segments": "the pool's client",
    "serving.kvpool.live.server_link": "the pool's client",
    "serving.scaling.live.scaling_board": "the board, which gateways report to",
}
"""Modules of a party that others import in addition to values, and why."""

PURE = {"ray", "asyncio", "threading", "time", "random", "os", "torch", "numpy", "socket"}
EDGES = frozenset({*PURE, "ctypes", "fcntl", "gc", "mmap", "redis", "resource", "selectors", "signal", "subprocess"})
BANNED = {
    "serving.values": PURE - {"socket"},
    "serving.instance.core": PURE,
    "serving.gateway.core": PURE,
    "serving.kvevents.core": PURE,
    "serving.kvpool.core": PURE,
    "serving.scaling.core": PURE,
    "serving.group.core": PURE,
    "serving.config": {"ray", "torch", "os"},
    "serving.instance.executors": {"ray", "asyncio", "threading", "random"},
    "serving.model": {"ray", "asyncio", "transformers"},
    "serving.wire": {"ray", "torch"},
    "serving.gateway.api": {"ray", "torch", "transformers"},
    "serving.virtual": {"ray", "torch", "asyncio", "threading", "fastapi"},
    "loadgen": {"serving", "hardware", "tests", "deploy", "docs", "ray", "torch", "transformers"},
    "loadgen.report": {"numpy", "os", "asyncio", "threading", "time", "random"},
    "loadgen.arrivals": {"asyncio", "threading", "time", "random", "os"},
    "loadgen.metrics": {"asyncio", "threading", "time", "random", "os"},
    "loadgen.search": {"asyncio", "threading", "time", "random", "os"},
    "hardware": {"serving", "loadgen", "torch"},
    "serving": {"loadgen", "tests", "deploy", "docs"},
}
SHARED = ("loadgen.trace", "loadgen.report", "loadgen.progress_bar", "loadgen.command_words")
"""Parts of `loadgen` that `serving` imports; they reach only one another, down the layers, and `LEAVES`."""
LEAVES = (
    "loadgen.quantities",
    "loadgen.errors",
    "loadgen.exit_codes",
    "loadgen.json_text",
    "loadgen.regular_file",
    "loadgen.server_address",
    "loadgen.terminal",
)
"""Modules of `loadgen` that all packages share; they import nothing of ours but one another."""
RAY_MAY_BE_IMPORTED_BY = (
    "serving.cluster",
    "serving.instance.live.replica",
    "serving.group.live.group_places",
    "serving.group.live.rank_actor",
    "serving.group.live.ray_group",
    "serving.group.live.shell_replica",
    "serving.gateway.live.replica",
    "serving.gateway.live.traffic_report",
    "serving.kvpool.live.replica",
    "serving.kvpool.live.pool_control",
    "serving.scaling.live",
    "serving.scaling.dashboard",
    "serving.launch",
    "serving.tools.chaos.host_agents",
    "hardware.ray_resources",
)
HARDWARE_MAY_IMPORT = frozenset({"numpy", "xxhash", "ray"})

SOURCES = read_sources("hardware", "serving", "loadgen")


def test_imports_go_down_the_layers() -> None:
    assert upward_imports(SOURCES, LAYERS, ROOTS) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert import_circles(SOURCES) == []


def test_no_folder_imports_itself_by_way_of_others() -> None:
    assert folder_circles(SOURCES) == []


def test_parties_import_of_each_other_only_what_is_offered() -> None:
    taken = imports_across(SOURCES, PARTIES)
    assert {path: names for path, names in taken.items() if not names <= set(OFFERED)} == {}
    assert set(OFFERED) <= set().union(*taken.values()), "offered, but nobody takes it"


@pytest.mark.parametrize("package", BANNED)
def test_banned_modules_are_out_of_reach(package: str) -> None:
    assert banned_imports(SOURCES, package, frozenset(BANNED[package]), frozenset((*SHARED, *LEAVES))) == []


def test_live_folders_hold_drivers_not_decisions() -> None:
    """A live module that neither imports a clock, thread, socket, event loop or store nor drives one that does holds
    decisions, which belong in a core.
    """
    live = [one for one in SOURCES if any(within(one.module, f"{party}.live") for party in PARTIES)]
    driving = {line.partition(":")[0] for line in banned_imports(live, "serving", EDGES)}
    pure = {one.path: len(one.text.splitlines()) for one in live if one.path not in driving}
    assert sum(pure.values()) <= 300, pure


def test_only_the_edges_import_ray() -> None:
    assert importers_outside(SOURCES, "ray", RAY_MAY_BE_IMPORTED_BY) == []


@pytest.mark.parametrize("package", [*SHARED, *LEAVES])
def test_what_is_shared_needs_little(package: str) -> None:
    assert reached_outside(SOURCES, package, "loadgen", (*SHARED, *LEAVES)) == []


def test_plots_are_drawn_in_the_page() -> None:
    assert importers_outside(SOURCES, "matplotlib", ()) == []


def test_hardware_needs_little() -> None:
    assert foreign_imports(SOURCES, "hardware", HARDWARE_MAY_IMPORT) == []


def test_no_test_imports_a_test_module() -> None:
    assert imports_of_tests(read_sources("tests")) == []


def sample(**texts: str) -> list[Source]:
    """Sources by module name, with `__` for a dot."""
    modules = {name.replace("__", "."): text for name, text in texts.items()}
    return [Source(f"{module.replace('.', '/')}.py", module, text) for module, text in modules.items()]


def test_the_checker_sees_an_import_upwards() -> None:
    bad = sample(
        low__a="def late():\n    from high.b import thing\n",
        high__b="import low.a\nthing = 1\n",
        other="",
    )
    assert upward_imports(bad, ("low", "high"), ()) == [
        "low/a.py: imports high.b.thing, which is above low",
        "other.py: has no layer; give it a place in LAYERS",
    ]


def test_the_checker_sees_a_circle_once_wherever_it_is_entered() -> None:
    bad = sample(
        pkg__a="from pkg import b\n",
        pkg__b="def late():\n    from pkg.c import thing\n",
        pkg__c="import pkg.b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.a\nthing = 1\n",
    )
    assert import_circles(bad) == ["pkg/b.py: pkg.b -> pkg.c -> pkg.b"]


def test_the_checker_sees_a_circle_of_folders() -> None:
    bad = sample(
        tool__a__one="from tool.b import two\n",
        tool__b__two="from tool import leaf\n",
        tool__b__three="from tool.a import four\n",
        tool__a__four="",
        tool__leaf="import tool.a.four\n",
    )
    assert folder_circles(bad) == ["tool/a: tool/a -> tool/b -> tool/a"]
    assert import_circles(bad) == []


def test_the_checker_follows_imports_to_a_banned_module() -> None:
    bad = sample(
        pure__a="from pure import b\n",
        pure__b="from helper.c import now\n",
        helper__c="import time.clock\nimport json\n",
        pure__clean="import timeit\nimport json\n",
    )
    assert banned_imports(bad, "pure", frozenset({"time"})) == [
        "pure/a.py: pure.a -> pure.b -> helper.c -> time.clock",
        "pure/b.py: pure.b -> helper.c -> time.clock",
    ]


def test_the_checker_lets_an_allowed_module_pass_but_not_what_it_imports() -> None:
    bad = sample(pure__a="from tool.leaf import x\n", pure__b="from tool import run\n", tool__leaf="", tool__run="")
    tool, leaf = frozenset({"tool"}), frozenset({"tool.leaf"})
    assert banned_imports(bad, "pure", tool, leaf) == ["pure/b.py: pure.b -> tool.run"]
    bad = sample(pure__a="from tool.leaf import x\n", tool__leaf="from tool import run\n", tool__run="")
    assert banned_imports(bad, "pure", tool, leaf) == ["pure/a.py: pure.a -> tool.leaf -> tool.run"]


def test_the_checker_leaves_imports_for_type_checkers_alone() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\nelse:\n    import os\n"
    fine, bad = frozenset({"random"}), frozenset({"os"})
    assert banned_imports(sample(pure__a=text), "pure", fine) == []
    assert banned_imports(sample(pure__a=text), "pure", bad) == ["pure/a.py: pure.a -> os"]


def test_the_checker_sees_what_one_party_takes_of_another() -> None:
    parties = sample(a__core__x="from b.core import y\nimport a.core.z\n", b__core__y="", a__core__z="")
    assert imports_across(parties, ("a", "b")) == {"a/core/x.py": {"b.core.y"}}


def test_the_checker_sees_a_library_outside_its_place() -> None:
    bad = sample(edge__a="import ray\n", core__b="from ray import serve\n", core__c="import rayon\n")
    assert importers_outside(bad, "ray", ("edge",)) == ["core/b.py: imports ray"]


def test_the_checker_sees_what_is_not_shared() -> None:
    bad = sample(
        gen__trace__a="from gen.errors import Wrong\nfrom gen.trace import b\n",
        gen__trace__b="import gen.client\n",
        gen__errors="",
        gen__client="",
    )
    assert reached_outside(bad, "gen.trace", "gen", ("gen.trace", "gen.errors")) == [
        "gen/trace/a.py: reaches gen.client",
        "gen/trace/b.py: reaches gen.client",
    ]


def test_the_checker_sees_foreign_packages() -> None:
    bad = sample(hw__a="import os, numpy, torch.nn\nfrom hw import b\n", other="import torch\n")
    assert foreign_imports(bad, "hw", frozenset({"numpy"})) == ["hw/a.py: imports torch.nn"]


def test_the_checker_sees_imports_of_tests() -> None:
    bad = sample(tests__test_a="import tests.cases\nfrom tests import case\n", tests__b="from tests.test_a import x\n")
    assert imports_of_tests(bad) == ["tests/b.py: imports tests.test_a.x"]
