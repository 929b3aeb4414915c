"""One run of the figures: its parts, each of which adds rates to the book or lines to the table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from serving.errors import ServingError
from serving.model.kv_shape import KvDtype
from serving.model.native.library import load
from tests.benchmarks.bare_engine import ExecutorKind
from tests.benchmarks.conditions import progress
from tests.benchmarks.engine_figures import goals, rounds, speculation
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.engines import LlamaEngine, Open, OurEngine, VllmEngine
from tests.benchmarks.engine_figures.goals import Row
from tests.benchmarks.engine_figures.models import SMOLLM2, Checkpoints, prepare, prepare_smollm2
from tests.benchmarks.engine_figures.peers import Llama, Peers

SHAPES = {
    "small": [*(("decode", batch) for batch in (1, 4, 16, 32)), ("prefill", 512), ("prefill", 2048)],
    "tiny": [("decode", 1), ("decode", 16)],
    SMOLLM2: [*(("decode", batch) for batch in (1, 4, 16, 32)), ("prefill", 512), ("prefill", 2048)],
}
_INT8_FORMS: dict[str, KvDtype] = {goals.OURS_INT8: "auto", goals.OURS_INT8_KV: "int8"}


@dataclass(frozen=True, slots=True)
class Extent:
    """Duration of a measurement: `samples` of one shape per round and engine; `prompts` and `repeats` for draft
    tokens.
    """

    rounds: int = 3
    samples: int = 2
    prompts: int = 8
    repeats: int = 3


QUICK = Extent(rounds=1, samples=1, prompts=2, repeats=1)


@dataclass(slots=True)
class Run:
    """Settings of a run, and its results.

    Args:
        models: folder of the checkpoints.
        corpus: folder of the demo model's corpus; None = the line that needs held-out text is marked.
        instructions: instruction set of our native executor; None = the processor's best.
        executor: of `ours bf16` and `ours INT8`.
        torch_too: measure the torch executor as well.
    """

    peers: Peers
    models: Path
    threads: int
    extent: Extent
    executor: ExecutorKind
    torch_too: bool
    corpus: Path | None
    instructions: str | None = None
    book: Book = field(default_factory=Book)
    rows: list[Row] = field(default_factory=list)

    def parts(self) -> dict[str, Callable[[], None]]:
        """Name -> how to measure it, in order."""
        models = {name: partial(self.bare, name) for name in SHAPES}
        return models | {"mtp": self.speculation}

    def bare(self, model: str) -> None:
        """Decode and prefill of every engine on one checkpoint, no HTTP."""
        real = model == SMOLLM2
        forms = prepare_smollm2(self.models, self.peers) if real else prepare(self.models, model, self.peers)
        openers = self._ours(forms)
        for name, peer, gguf in self._llamas(forms):
            if gguf is not None:
                openers[name] = partial(LlamaEngine, peer, gguf, self.threads)
        if not real and self._present(goals.VLLM, self.peers.vllm.absent):
            openers[goals.VLLM] = partial(VllmEngine, self.peers.vllm, forms.bf16, self.threads)
        shapes = [Shape(model, phase, size) for phase, size in SHAPES[model]]  # type: ignore[arg-type] # phases
        rounds.measure(openers, shapes, self.extent.rounds, self.extent.samples, self.book)

    def _ours(self, forms: Checkpoints) -> dict[str, Open]:
        """This engine in all its forms."""
        ours = partial(OurEngine, threads=self.threads, instructions=self.instructions)
        openers: dict[str, Open] = {goals.OURS_BF16: partial(ours, forms.bf16, self.executor)}
        library = load()
        short = library is not None and self.instructions is None and library.short_weights_pay
        if self.executor != "torch" and self._present(goals.OURS_PLAIN, "" if short else "no short form here"):
            openers[goals.OURS_PLAIN] = partial(ours, forms.bf16, self.executor, short=False)
        for name, kv_dtype in _INT8_FORMS.items():
            if self._present(name, forms.absent.get("int8", "")) and forms.int8 is not None:
                openers[name] = partial(ours, forms.int8, self.executor, kv_dtype=kv_dtype)
        if self.torch_too:
            openers[goals.OURS_TORCH] = partial(ours, forms.bf16, "torch")
        return openers

    def speculation(self) -> None:
        """Tokens per second with draft tokens and without."""
        if self.corpus is None:
            self.rows.append(Row(goals.SPECULATION, None, "no --corpus given: there is no held-out text"))
            return
        stories, extent = speculation.held_out_stories(self.corpus), self.extent
        try:
            speeds = speculation.measure(stories, self.executor, self.threads, extent.prompts, extent.repeats)
        except (ServingError, RuntimeError, EOFError, OSError) as error:
            self.rows.append(Row(goals.SPECULATION, None, rounds.one_line(error)))
            return
        self.rows.append(speculation.speculation_row(speeds))

    def _llamas(self, forms: Checkpoints) -> list[tuple[str, Llama, Path | None]]:
        """llama.cpp's and its fork's engines with their checkpoints; None for an absent one."""
        peers = self.peers
        found = [
            (goals.LLAMA_BF16, peers.llama, forms.gguf_bf16),
            (goals.LLAMA_Q8, peers.llama_q8, forms.gguf_q8),
            (goals.IK_BF16, peers.ik, forms.gguf_bf16),
            (goals.IK_Q8, peers.ik, forms.gguf_q8),
            *((f"llama.cpp {form}", peers.llama, gguf) for form, gguf in forms.gguf_others.items()),
        ]
        return [(n, peer, g if self._present(n, peer.absent or forms.no_gguf(g)) else None) for n, peer, g in found]

    def _present(self, name: str, absent: str) -> bool:
        """Whether an engine can be measured; otherwise the reason is recorded in the book."""
        if absent:
            progress(f"{name} is absent: {absent}")
            self.book.absent[name] = absent
        return not absent
