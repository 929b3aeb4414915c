"""Calibration text on its way through a model, one layer at a time.

Windows of equal length, each a sequence of its own that attends to itself alone; all in float32. Memory holds one layer
of the model, and one hidden state per token of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.model.architecture import Architecture
from serving.model.batch import ForwardBatch, PromptChunk, future_mask
from serving.model.kv_cache import KvCache
from serving.model.model import Block, MtpLayer
from serving.model.rope import Rope
from serving.tools.evaluate.texts import read_documents, text_prefix
from serving.tools.quantize.quantize_settings import Settings

PASS_TOKENS = 4096
"""Tokens that go through a layer at once."""
_QUERY_ROWS = 256


@dataclass(frozen=True, slots=True)
class Windows:
    """Token windows.

    Args:
        ids: `[windows, length + 1] int64`: each window's tokens, and the one after its last.
    """

    ids: Tensor

    @property
    def length(self) -> int:
        """Tokens of a window that are fed."""
        return self.ids.shape[1] - 1

    @property
    def tokens(self) -> int:
        """Tokens fed in all."""
        return self.ids.shape[0] * self.length

    @property
    def fed(self) -> Tensor:
        """`[tokens] int64`."""
        return self.ids[:, :-1].reshape(-1)

    @property
    def next(self) -> Tensor:
        """`[tokens] int64`, the token after each that is fed."""
        return self.ids[:, 1:].reshape(-1)


class LayerRunner:
    """Runs layers over windows."""

    def __init__(self, config: Architecture, windows: Windows) -> None:
        self.windows = windows
        self._length = windows.length
        self._per_pass = max(1, PASS_TOKENS // self._length)
        self._rope = Rope(config, torch.device("cpu"))
        self._cache = KvCache(config, self._per_pass, self._length, torch.float32, num_layers=1)
        self._future = future_mask(min(_QUERY_ROWS, self._length), torch.float32, torch.device("cpu"))

    def block(self, block: Block, hidden: Tensor) -> Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        block.attention.cache_layer = 0  # one layer at a time: all use the same rows
        passes = self._passes(self.windows.fed)
        return torch.cat([block(hidden[at], self._rope.rotations(b.positions), b, self._cache) for at, b in passes])

    def draft(self, draft: MtpLayer, hidden: Tensor) -> Tensor:
        """A draft layer's hidden states.

        Args:
            hidden: `[tokens, hidden]`, the model's last, before its norm.
        """
        draft.block.attention.cache_layer = 0
        passes = self._passes(self.windows.next)
        return torch.cat([draft.forward(hidden[at], b, self._cache, self._rope) for at, b in passes])

    def _passes(self, tokens: Tensor) -> Iterator[tuple[slice, ForwardBatch]]:
        for first in range(0, tokens.shape[0], self._per_pass * self._length):
            at = slice(first, first + self._per_pass * self._length)
            yield at, self._batch(tokens[at])

    def _batch(self, tokens: Tensor) -> ForwardBatch:
        length, rows = self._length, torch.arange(tokens.shape[0])
        nothing = torch.empty(0, dtype=torch.int64)
        chunks = tuple(
            PromptChunk(first, first + length, 0, nothing, self._future) for first in range(0, tokens.shape[0], length)
        )
        return ForwardBatch(tokens, rows % length, rows, (), chunks)


# Text for calibration: files to token windows, some of them held out.

HELD_OUT_EVERY = 8
"""One window of this many is held out."""
SHORTEST_WINDOW = 16


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Windows to calibrate with and windows to measure on.

    Args:
        source: where they come from, for the report.
        is_random: whether that is nowhere.
    """

    calibration: Windows
    held_out: Windows
    source: str
    is_random: bool


def read_text(model: Path, config: Architecture, files: Sequence[Path], settings: Settings) -> CalibrationText:
    """Windows of some files' text, or of random tokens without files.

    Documents are concatenated, each after the tokenizer's prefix of a text; so is every window. If a text has
    more tokens than needed, windows are drawn by the seed.

    Raises: ConfigError if a file cannot be read or there is too little text.
    """
    if not files:
        generator = torch.Generator().manual_seed(settings.seed)
        ids = torch.randint(config.vocab_size, (settings.tokens + settings.window,), generator=generator)
        return _split(ids, [], config, settings, "random tokens", is_random=True)
    tokenizer = Tokenizer.from_folder(model)
    prefix = text_prefix(tokenizer)
    tokens: list[int] = []
    for document in (document for path in files for document in read_documents(path)):
        tokens += [*prefix, *tokenizer.encode(document, add_special_tokens=False)]
    if tokens and max(tokens) >= config.vocab_size:
        raise ConfigError(f"the tokenizer of {model} has more tokens than its config.json: fetch the model again")
    source = ", ".join(path.name for path in files)
    return _split(torch.tensor(tokens, dtype=torch.int64), prefix, config, settings, source, is_random=False)


def _too_little(available: int, config: Architecture, settings: Settings, source: str) -> str:
    """Which of the three numbers leaves no window that is long enough, and the remedy."""
    wanted = 4 * SHORTEST_WINDOW
    if settings.tokens < wanted:
        return f"calibration needs {wanted} tokens at least, and --tokens is {settings.tokens}: give a larger --tokens"
    if available < wanted:
        return f"calibration needs {wanted} tokens at least, and {source} has {available}: give more text"
    return (
        f"calibration needs windows of {SHORTEST_WINDOW} tokens, and the model's max_position_embeddings is "
        f"{config.max_position_embeddings}: a context so short cannot be calibrated"
    )


def _split(
    ids: Tensor, begin: list[int], config: Architecture, settings: Settings, source: str, *, is_random: bool
) -> CalibrationText:
    available = ids.shape[0]
    length = min(settings.window, config.max_position_embeddings, settings.tokens // 4, available // 4)
    if length < SHORTEST_WINDOW:
        raise ConfigError(_too_little(available, config, settings, source))
    body = length + 1 - len(begin)
    rows = ids[: available // body * body].view(-1, body)
    chosen = torch.randperm(rows.shape[0], generator=torch.Generator().manual_seed(settings.seed))
    chosen = chosen[: max(2, settings.tokens // length)]
    first = torch.tensor(begin, dtype=torch.int64).expand(chosen.shape[0], -1)
    rows = torch.cat((first, rows[chosen]), 1)
    held = torch.arange(rows.shape[0]) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    held[-1] = True
    return CalibrationText(Windows(rows[~held]), Windows(rows[held]), source, is_random)
