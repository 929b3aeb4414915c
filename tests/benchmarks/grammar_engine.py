"""The loop that serves, over the bundled model and its vocabulary, for sequences that may have grammars."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matchers
from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.instance.live.compute_model import end_idle_workers
from serving.instance.live.engine_news import LoopEvent
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.values.news import Tokens
from serving.values.orders import Add
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec
from tests.benchmarks.bare_engine import BLOCK_TOKENS, engine_loop
from tests.fakes.engine_calls import EngineCalls

_LOOK_S = 5.0


@dataclass
class Stream:
    """All output of one sequence."""

    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    """Arrival time of each event."""
    end: FinishReason | None = None


class GrammarEngine:
    """An aggregated engine.

    Args:
        model: a checkpoint with a tokenizer.
        forced: as `[engine] forced_tokens`.
        found: as `[engine] lookup_tokens` with `drafts = "lookup"`; 0 = without.
    """

    def __init__(self, model: Path, threads: int, blocks: int, forced: int, found: int = 0) -> None:
        loaded = load_model(model, native=True)
        self.tokenizer = Tokenizer.from_folder(model)
        size = loaded.config.vocab_size
        self.grammars = Grammars(lambda: self.tokenizer.vocabulary(size), route_for_steps())
        self._max_len = loaded.config.max_position_embeddings
        self._blocks, self._drafts = blocks, {"forced_tokens": forced, "lookup_tokens": found}
        cache = KvCache(loaded.config, blocks, BLOCK_TOKENS, loaded.dtype, loaded.device)
        own: dict[str, Any] = {"matchers": Matchers(self.grammars), "most_forced": forced}
        self._executor = NativeExecutor(loaded, cache, threads=threads, max_rows=512, **own)
        end_idle_workers()

    def run(
        self,
        asks: Sequence[tuple[Sequence[int], SamplingParams]],
        enough: Callable[[Sequence[Stream]], bool] = lambda _: False,
    ) -> list[Stream]:
        """Compute prompts together, until all have finished or the output suffices. Returns: a stream for each."""
        limits: dict[str, Any] = {"max_model_len": self._max_len, **self._drafts}
        settings = EngineSettings(EngineRole.AGGREGATED, BLOCK_TOKENS, 512, 64, 1024, prefix_reuse=False, **limits)
        streams = [Stream() for _ in asks]
        done = threading.Event()

        def told(news: list[LoopEvent]) -> None:
            now = time.perf_counter()
            for item in news:
                if isinstance(item, Tokens):
                    stream = streams[int(item.sequence_id)]
                    stream.tokens += item.tokens
                    stream.at_s.append(now)
                    stream.end = item.finish_reason or stream.end
            if enough(streams) or all(stream.end for stream in streams):
                done.set()

        loop = engine_loop(EngineCalls(settings, self._blocks), self._executor, told)
        for index, (prompt, sampling) in enumerate(asks):
            loop.post(Add(SequenceSpec(SequenceId(str(index)), tuple(prompt), sampling)))
            if sampling.grammar is not None:
                self.grammars.fresh(sampling.grammar)
        loop.start()
        while not done.wait(_LOOK_S):
            assert loop.progress_age_s() < math.inf, "the engine died"
        loop.stop()
        self._executor._matchers = Matchers(self.grammars)  # names are used again
        return streams
