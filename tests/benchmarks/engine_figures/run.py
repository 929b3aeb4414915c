"""One run of the figures: its parts, each of which adds rates to the book or lines to the table."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from serving.errors import ServingError
from serving.model.config import read_architecture
from serving.model.kv_layout import KvDtype
from serving.model.native.library import load
from tests.benchmarks.bare_engine import ExecutorKind
from tests.benchmarks.conditions import STORYTELLER, progress
from tests.benchmarks.engine_figures import accuracy, http_load, rounds, speculation
from tests.benchmarks.engine_figures.bandwidth import PROBE_BYTES, read_bandwidth, step_weight_bytes
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.engines import LlamaEngine, Open, OurEngine, VllmEngine
from tests.benchmarks.engine_figures.goals import (
    BANDWIDTH,
    IK_BF16,
    IK_Q8,
    LLAMA_BF16,
    LLAMA_Q8,
    OURS_BF16,
    OURS_INT8,
    OURS_INT8_KV,
    OURS_PLAIN,
    OURS_TORCH,
    SPECULATION,
    VLLM,
    Row,
)
from tests.benchmarks.engine_figures.models import SMOLLM2, Checkpoints, Kind, prepare, prepare_smollm2, quantised
from tests.benchmarks.engine_figures.peers import Llama, Peers

BATCHES: dict[Kind, tuple[int, ...]] = {"small": (1, 4, 16, 32), "tiny": (1, 16)}
PROMPTS: dict[Kind, tuple[int, ...]] = {"small": (512, 2048), "tiny": ()}
HTTP_MODEL: Kind = "small"
_INT8_FORMS: dict[str, KvDtype] = {OURS_INT8: "auto", OURS_INT8_KV: "int8"}


@dataclass(frozen=True, slots=True)
class Extent:
    """How long to measure.

    Args:
        rounds: through all engines and shapes. samples: of one shape, in one round, of one engine.
        http_rounds: through all servers. requests: of one load.
        prompts, repeats: of the speculation figure.
    """

    rounds: int = 3
    samples: int = 2
    http_rounds: int = 2
    requests: int = 96
    prompts: int = 8
    repeats: int = 3


QUICK = Extent(rounds=1, samples=1, http_rounds=1, requests=32, prompts=2, repeats=1)


@dataclass(slots=True)
class Run:
    """What is measured with, and what was found.

    Args:
        models: folder of the checkpoints.
        corpus: folder of the demo model's corpus; None = the lines that need held-out text say so.
        executor: of `ours bf16` and `ours INT8`.
        torch_too: measure the torch executor beside it.
    """

    peers: Peers
    models: Path
    threads: int
    extent: Extent
    executor: ExecutorKind
    torch_too: bool
    corpus: Path | None
    book: Book = field(default_factory=Book)
    rows: list[Row] = field(default_factory=list)

    def smollm2(self) -> None:
        """Decode of this engine and of llama.cpp on a real model, no HTTP."""
        forms = prepare_smollm2(self.models, self.peers)
        openers = self._without_peers(forms)
        for name, peer, gguf in self._llamas(forms):
            if self._present(name, peer.absent or forms.no_gguf(gguf)):
                openers[name] = partial(LlamaEngine, peer, _sure(gguf), self.threads)
        shapes = [Shape(SMOLLM2, "decode", 1), Shape(SMOLLM2, "decode", 16), Shape(SMOLLM2, "prefill", 512)]
        rounds.measure(openers, shapes, self.extent.rounds, self.extent.samples, self.book)

    def bare(self, kind: Kind) -> None:
        """Decode and prefill of every engine on one checkpoint, no HTTP."""
        forms = prepare(self.models, kind, self.peers)
        openers = self._without_peers(forms)
        for name, peer, gguf in self._llamas(forms):
            if self._present(name, peer.absent or forms.no_gguf(gguf)):
                openers[name] = partial(LlamaEngine, peer, _sure(gguf), self.threads)
        if self._present(VLLM, self.peers.vllm.absent):
            openers[VLLM] = partial(VllmEngine, self.peers.vllm, forms.bf16, self.threads)
        shapes = [Shape(kind, "decode", batch) for batch in BATCHES[kind]]
        shapes += [Shape(kind, "prefill", tokens) for tokens in PROMPTS[kind]]
        rounds.measure(openers, shapes, self.extent.rounds, self.extent.samples, self.book)

    def _without_peers(self, forms: Checkpoints) -> dict[str, Open]:
        """This engine in all its forms."""
        ours = partial(OurEngine, threads=self.threads)
        openers: dict[str, Open] = {OURS_BF16: partial(ours, forms.bf16, self.executor)}
        library = load()
        short = library is not None and library.short_weights_pay
        if self.executor != "torch" and self._present(OURS_PLAIN, "" if short else "no short form here"):
            openers[OURS_PLAIN] = partial(ours, forms.bf16, self.executor, short=False)
        for name, kv_dtype in _INT8_FORMS.items():
            if self._present(name, forms.absent.get("int8", "")):
                openers[name] = partial(ours, _sure(forms.int8), self.executor, kv_dtype=kv_dtype)
        if self.torch_too:
            openers[OURS_TORCH] = partial(ours, forms.bf16, "torch")
        return openers

    def http(self) -> None:
        """The same load through every engine's server."""
        forms = prepare(self.models, HTTP_MODEL, self.peers)
        ours = partial(http_load.OurServer, threads=self.threads)
        openers: dict[str, http_load.OpenServer] = {OURS_BF16: partial(ours, forms.bf16)}
        if self._present(OURS_INT8, forms.absent.get("int8", "")):
            openers[OURS_INT8] = partial(ours, _sure(forms.int8))
        for name, peer, gguf in self._llamas(forms):
            if self._present(name, peer.absent or forms.no_gguf(gguf)):
                openers[name] = partial(http_load.llama_server, peer, _sure(gguf), self.threads)
        if self._present(VLLM, self.peers.vllm.absent):
            openers[VLLM] = partial(http_load.vllm_server, self.peers.vllm, forms.bf16, self.threads)
        vocabulary = read_architecture(forms.bf16).vocab_size
        load = http_load.Load(vocabulary, self.extent.requests, seed=1)
        http_load.measure(openers, load, self.extent.http_rounds, HTTP_MODEL, self.book)

    def bandwidth(self) -> None:
        """Bytes that our batch-1 decode reads per second, as a share of what the machine can read."""
        shape = Shape("small", "decode", 1)
        rate = self.book.best(OURS_PLAIN, shape) or self.book.best(OURS_BF16, shape)
        if rate is None:
            self.rows.append(Row(BANDWIDTH, None, f"{shape} was not measured in this run"))
            return
        step = step_weight_bytes(read_architecture(self.models / "small"), 2)
        progress(f"reading a buffer of {PROBE_BYTES >> 20} MiB")
        try:
            found = {threads: read_bandwidth(threads) for threads in sorted({1, self.threads})}
        except RuntimeError as error:
            self.rows.append(Row(BANDWIDTH, None, str(error)))
            return
        probes = ", ".join(f"{rate / 1e9:.1f} GB/s with {threads} threads" for threads, rate in found.items())
        detail = f"{step / 1e6:.0f} MB × {rate:.0f} steps/s = {step * rate / 1e9:.1f} GB/s; read: {probes}"
        self.rows.append(Row(BANDWIDTH, step * rate / max(found.values()), detail))

    def accuracy(self) -> None:
        """INT8 against bf16 on held-out text."""
        if self.corpus is None:
            self.rows += accuracy.missing_rows("no --corpus given: there is no held-out text")
            return
        stories = accuracy.write_stories(self.corpus, self.models)
        absent: dict[str, str] = {}
        int8 = quantised(STORYTELLER, self.models / "storyteller-int8", stories.calibration, absent)
        if int8 is None:
            self.rows += accuracy.missing_rows(absent["int8"])
            return
        try:
            report = accuracy.compare(int8, STORYTELLER, stories.held_out)
        except (RuntimeError, TimeoutExpired) as error:
            self.rows += accuracy.missing_rows(rounds.one_line(error))
            return
        self.rows += accuracy.accuracy_rows(report)

    def speculation(self) -> None:
        """Tokens per second with guesses against none."""
        if self.corpus is None:
            self.rows.append(Row(SPECULATION, None, "no --corpus given: there is no held-out text"))
            return
        stories = accuracy.write_stories(self.corpus, self.models)
        extent = self.extent
        try:
            speeds = speculation.measure(stories.held_out, self.executor, self.threads, extent.prompts, extent.repeats)
        except (ServingError, RuntimeError, EOFError, OSError) as error:
            self.rows.append(Row(SPECULATION, None, rounds.one_line(error)))
            return
        self.rows.append(speculation.speculation_row(speeds))

    def _llamas(self, forms: Checkpoints) -> list[tuple[str, Llama, Path | None]]:
        """Names of llama.cpp's and its fork's engines, with their checkpoints."""
        peers = self.peers
        return [
            (LLAMA_BF16, peers.llama, forms.gguf_bf16),
            (LLAMA_Q8, peers.llama_q8, forms.gguf_q8),
            (IK_BF16, peers.ik, forms.gguf_bf16),
            (IK_Q8, peers.ik, forms.gguf_q8),
        ]

    def _present(self, name: str, absent: str) -> bool:
        """Whether an engine can take part.

        Effects: the reason why not goes into the book.
        """
        if absent:
            self.book.absent[name] = absent
        return not absent


def _sure(path: Path | None) -> Path:
    assert path is not None, "an engine without its checkpoint was offered"
    return path
