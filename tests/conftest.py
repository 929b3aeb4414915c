"""Settings of every test: one compute thread, repeatable properties, slow tests last and with more time."""

import gc
import os

# Set before any test imports torch: all processes share two cores, and sums over threads vary.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import HealthCheck, settings

# Test the sources, whatever `cloudmatrix compile` has left behind.
import serving.gateway.core.router  # noqa: F401
from serving.model.native.library import load

pytest_plugins = ["tests.costs", "tests.pauses", "tests.sharing"]

SLOW_TIMEOUT_S = 600
FILES_BETWEEN = 25

settings.register_profile(
    "default",
    max_examples=40,
    stateful_step_count=40,
    deadline=None,  # a busy machine is no failure
    derandomize=True,  # the same examples on every run: a failure in CI is a failure at the desk
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=400, derandomize=False)
settings.load_profile("default")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the native library now if it does not exist: that takes longer than a test may."""
    gc.disable()
    if not session.config.option.collectonly:
        load()


def pytest_collection_finish() -> None:
    """From now on the garbage collector only examines objects of tests, not the million objects of modules and
    tests.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


_files_since = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze the objects of modules and fixtures, after every 25 files: tests that collect garbage then examine fewer.

    Garbage that exists at that time is frozen, too: finding it takes seconds.
    """
    global _files_since
    _files_since += nextitem is not None and nextitem.path != item.path
    if _files_since >= FILES_BETWEEN:
        _files_since = 0
        gc.collect(1)
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests that start a real cluster behind all others; give each the time that a cluster needs."""
    items.sort(key=lambda item: bool(item.get_closest_marker("slow")) > bool(item.get_closest_marker("builds")))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
