"""A bench whose engine is recorded."""

from typing import Any

from tests.instance.bench import Bench
from tests.instance.decision_logs import MemoryLog


class RecordedBench(Bench):
    """A bench whose engine is recorded."""

    def __init__(self, *arguments: Any, **changes: Any) -> None:
        super().__init__(*arguments, **changes)
        self.log = MemoryLog(self.engine)
