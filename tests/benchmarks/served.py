"""`cloudmatrix serve` as a subprocess with a configuration of the benchmark's, and what can be asked of it."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.model.size import weight_bytes
from tests.benchmarks.conditions import ROOT
from tests.benchmarks.processes import cpu_by_role, end_all, tree
from tests.benchmarks.sse_client import StreamRecord, completion, stream

HOST = "127.0.0.1"
READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
_PAGE = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the environment


@dataclass(frozen=True, slots=True)
class Setup:
    """What a benchmark may vary of a configuration with the KV memory of `small.toml` or `aggregated.toml`.

    Args:
        threads: compute threads per instance; 0 = as shipped.
        prefills: prefill instances.
        memory_servers: of the KV-cache pool; 0 = no pool.
        memory_mib: of one memory server.
        npus: of the one node; more than 8 leave room to scale up.
        decodes: decode instances at the start.
        sections: further sections of the file.
        timelines: of requests, that are kept.
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

    def toml(self, port: int) -> str:
        """The configuration file. Dies get the memory that the model's weights need, beside what is shipped."""
        import torch  # here: the benchmarks' own start should not wait for it

        weights_mib = weight_bytes(self.model, getattr(torch, self.dtype).itemsize) >> 20
        return f"""
[model]
path = "{self.model}"
name = "bench"
dtype = "{self.dtype}"
[serving]
mode = "{self.mode}"
[gateway]
port = {port}
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


class Served:
    """A running system; a context manager that ends all of it.

    Args:
        module: what to run: the product's own command, or a benchmark's variant of it.
        arguments: further arguments for it.
    """

    def __init__(self, setup: Setup, module: str = "serving.cli", arguments: Sequence[str] = ("serve",)) -> None:
        self.setup = setup
        self.port = free_port()
        self.started_at = 0.0
        self._module = module
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, without waiting.

        Effects: a process in a session of its own.
        """
        config = Path(self._folder.name) / "served.toml"
        config.write_text(self.setup.toml(self.port))
        command = [sys.executable, "-m", self._module, *self._arguments, "--config", str(config)]
        self.started_at = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """The launcher; everything else is below it."""
        assert self._process is not None, "not started"
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait for `/ready`.

        Raises: RuntimeError with the program's own output when it ends or does not become ready.
        """
        while time.perf_counter() - self.started_at < READY_DEADLINE_S:
            self.require_running()
            try:
                self.get("/ready")
            except OSError:
                time.sleep(0.05)
                continue
            return
        raise RuntimeError(f"not ready after {READY_DEADLINE_S:.0f} s:\n{self._log.read_text()}")

    def require_running(self) -> None:
        """Raises: RuntimeError with the program's output when it has ended."""
        assert self._process is not None, "not started"
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended with {self._process.returncode}:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Ctrl-C, then whatever it takes.

        Effects: no process of it is left.
        """
        process = self._process
        if process is not None and process.poll() is None:
            below = tree(process.pid)
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            end_all(below)
        self._folder.cleanup()

    def get(self, path: str) -> str:
        """Body of a GET.

        Raises: OSError when it does not answer with 200.
        """
        with _PAGE.open(f"http://{HOST}:{self.port}{path}", timeout=5.0) as response:
            text: str = response.read().decode()
            return text

    def printed(self, label: str) -> str:
        """A value of the banner, which comes a moment after the gateway is ready.

        Raises: RuntimeError when it does not come.
        """
        while time.perf_counter() - self.started_at < READY_DEADLINE_S:
            self.require_running()
            found = re.search(rf"{label} +(\S+)\n", self._log.read_text())
            if found is not None:
                return found[1]
            time.sleep(0.05)
        raise RuntimeError(f"no {label} in what the server printed:\n{self._log.read_text()}")

    def streamed_tokens(self) -> int:
        """Tokens that the gateway has passed on to clients so far."""
        found = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found is not None, "the gateway's metrics lack the generated tokens"
        return int(float(found[1]))

    def cpu(self) -> dict[str, float]:
        """CPU seconds used so far by every process of the system, by role."""
        return cpu_by_role(self.pid)

    async def stream(self, prompt: str | Sequence[int], max_tokens: int, **more: Any) -> StreamRecord:
        """One greedy streaming completion, read to its end."""
        return await stream(HOST, self.port, completion("bench", prompt, max_tokens, **more))

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "output.txt"


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def together(served: Served, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[StreamRecord]:
    """Stream all prompts at once and wait for all of them."""
    return await asyncio.gather(*(served.stream(prompt, max_tokens) for prompt in prompts))
