"""`cloudmatrix serve` with a benchmark's configuration: `tests.e2e.server.Server` with all cores, CPU by process."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.model.size import weight_bytes
from tests.benchmarks.conditions import ROOT
from tests.benchmarks.processes import cpu_by_role
from tests.benchmarks.sse_client import StreamRecord, completion, stream
from tests.e2e.server import MARK, Server

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that a benchmark may vary of a configuration with the KV memory of `small.toml` or `aggregated.toml`.

    Args:
        threads: compute threads per instance; 0 = as shipped.
        memory_servers: of the KV-cache pool; 0 = no pool.
        npus: of the one node; more than 8 leave capacity to scale up.
        sections: further sections of the file.
        timelines: number of request timelines kept; 0 = none.
    """

    model: Path
    mode: str = "disaggregated"
    server: str = "uvicorn"
    threads: int = 0
    dtype: str = "float32"
    prefills: int = 1
    memory_servers: int = 0
    memory_mib: int = 256
    npus: int = 8
    decodes: int = 1
    sections: str = ""
    timelines: int = 512

    def toml(self) -> str:
        """The configuration file. Dies get the memory that the model's weights need in addition to the default."""
        import torch  # imported here so that the benchmarks start fast

        weights_mib = weight_bytes(self.model, getattr(torch, self.dtype).itemsize) >> 20
        return f"""
[model]
path = "{self.model}"
name = "bench"
dtype = "{self.dtype}"
[serving]
mode = "{self.mode}"
[gateway]
server = "{self.server}"
timelines = {self.timelines}
[engine]
threads = {self.threads}
[cluster]
dashboard_port = 0
[[cluster.nodes]]
npus = {self.npus}
ub_memory_mib = {768 + 256 * self.prefills + self.memory_servers * self.memory_mib + 128 * (self.npus - 8)}
[hardware]
hbm_per_die_mib = {64 + weights_mib // 3}
[prefill]
replicas = {self.prefills}
npus_per_instance = 2
ub_memory_mib = 256
[decode]
replicas = {self.decodes}
npus_per_instance = 4
ub_memory_mib = 512
[aggregated]
npus_per_instance = 6
ub_memory_mib = 768
[kvcache]
replicas = {self.memory_servers}
ub_memory_mib = {self.memory_mib}
{self.sections}"""


class AllCores(Server):
    """A system that, unlike the tests' server, has the configured number of threads."""

    started_at = 0.0

    def launch(self) -> None:
        """Start without waiting."""
        environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self.folder)}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.started_at = time.perf_counter()
            self._process = subprocess.Popen(
                self._command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )


class Served(AllCores):
    """A running system; a context manager that ends all of it.

    Args:
        module: what to run: the product's own command, or a benchmark's variant of it.
        arguments: its arguments before `--config`.
    """

    def __init__(self, setup: Setup, module: str = "serving.cli", arguments: Sequence[str] = ("serve",)) -> None:
        super().__init__(Path())
        self.setup = setup
        config = self.folder / "served.toml"
        config.write_text(setup.toml())
        self._command = [sys.executable, "-m", module, *arguments, "--config", str(config), "--port", str(self.port)]

    def require_running(self) -> None:
        """Raises: RuntimeError with the program's output if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.out}{self.err}")

    def metric(self, name: str) -> int:
        """One counter of `/metrics`, summed over its labels."""
        return int(sum(map(float, re.findall(rf"^{name}\{{.*\}} (\S+)$", self.get("/metrics"), re.MULTILINE))))

    def cpu(self) -> dict[str, float]:
        """CPU seconds used so far by every process of the system, by role."""
        return cpu_by_role(self.process.pid)

    async def stream(self, prompt: str | Sequence[int], max_tokens: int, **more: Any) -> StreamRecord:
        """Read one greedy streaming completion to its end."""
        return await stream(HOST, self.port, completion("bench", prompt, max_tokens, **more))

    def batch_s(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """Time to stream all prompts at once, from the first request to the last stream's end [s]."""

        async def all_of_them() -> list[StreamRecord]:
            return await asyncio.gather(*(self.stream(prompt, max_tokens) for prompt in prompts))

        begun = time.perf_counter()
        records = asyncio.run(all_of_them())
        elapsed = time.perf_counter() - begun
        if failed := [record for record in records if record.status != 200 or record.first_at is None]:
            raise RuntimeError(f"{len(failed)} of {len(prompts)} streams failed, for example {failed[0]}")
        return elapsed
