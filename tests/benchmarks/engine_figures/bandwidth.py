"""How much memory a decode step has to read, and how fast this machine reads."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from serving.model.architecture import Architecture
from serving.model.tensors import model_tensors

PROBE_BYTES = 1 << 30  # far beyond any last-level cache
_REPEATS = 30
_PROBE = Path(__file__).with_name("read_probe.c")


def step_weight_bytes(config: Architecture, bytes_per_weight: float) -> int:
    """Weights that one decode step of one sequence reads [bytes].

    All matrices once, the head among them; of the routed experts those that one token is sent to; of the embedding one
    row. Scales of quantised forms and the KV cache are left out, so a figure made with this is a lower bound.
    """
    total = 0
    for name, shape in model_tensors(config).items():
        weights = 1
        for extent in shape:
            weights *= extent
        if "embed_tokens" in name:
            weights = shape[1]
        elif ".experts." in name and config.experts is not None:
            weights = weights * config.experts.per_token // config.experts.experts
        total += weights
    return int(total * bytes_per_weight)


def read_bandwidth(threads: int) -> float:
    """Fastest of some passes over a large buffer that was written before, by `threads` threads [bytes/s]."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("measuring the read bandwidth needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        done = subprocess.run(
            [compiler, *flags, str(_PROBE), "-o", str(library)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the probe does not compile: {done.stderr[-500:]}")
        probe = ctypes.CDLL(str(library)).read_bandwidth
        probe.restype = ctypes.c_double
        probe.argtypes = (ctypes.c_int64, ctypes.c_int32, ctypes.c_int32)
        rate: float = probe(PROBE_BYTES, threads, _REPEATS)
    if rate <= 0:
        raise RuntimeError("the probe got no memory")
    return rate
