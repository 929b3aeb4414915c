"""Which test files run in one process: those of a folder that share an expensive fixture."""

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = (
    "tests/architecture",
    "tests/deploy/two_hosts",
    "tests/e2e/one_node",
    "tests/e2e/shipped",
    "tests/tools/paper",
)
"""They share the syntax trees of all sources, two hosts, a system, another one, and all figures of a paper."""


class ByFixture(LoadFileScheduling):
    """Distributes files, like `--dist loadfile`, but the folders of `TOGETHER` whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = file.rpartition("/")[0]
        return folder if folder in TOGETHER else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFixture | None:
    """Replaces xdist's own `loadfile`."""
    return ByFixture(config, log) if config.getoption("dist") == "loadfile" else None
