"""Replay of a trace file: the recorded bodies at the recorded times."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError
from loadgen.plan import Conversation, Prompt, Turn, if_changed
from loadgen.trace.file import TraceHeader, TraceRequest, read_header, read_trace
from loadgen.workload.datasets.blocks import BlockPrompts
from loadgen.workload.ports import WordSource
from loadgen.workload.source import draw_seed


@dataclass(frozen=True)
class TraceReplay:
    """Workload of a trace file. Finite; `arrival_s` is the recorded time; draws nothing if every line has its body.

    A later turn is sent `think_ms` after the answer in front of it, with its recorded body, whatever that answer was.

    Attributes:
        model: put into each body in place of the recorded name, so that a trace can be replayed against another
            server; None = the exact bytes.
        words: writes prompts for lines without a body, from their hash ids; None = such lines are an error.
    """

    path: Path
    model: str | None = None
    words: WordSource | None = None

    def header(self) -> TraceHeader:
        """What the trace says of itself, for instance the endpoint.

        Raises: UsageError if the file cannot be read; TraceFormatError if it is no trace.
        """
        return read_header(self.path)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the file cannot be read, or if a line has no body and there are no words for it;
            TraceFormatError naming the line that cannot be read.
        """
        header = self.header()
        for _, session in groupby(read_trace(self.path), key=lambda request: request.session):
            requests = list(session)
            turns = [self._turn(request, header, rng) for request in requests]
            arrival_s = requests[0].timestamp_us / 1e6
            yield Conversation(turns=turns, tenant=requests[0].tenant, arrival_s=arrival_s, history=False)

    def _turn(self, request: TraceRequest, header: TraceHeader, rng: np.random.Generator) -> Turn:
        """One request.

        Raises: UsageError, TraceFormatError.
        """
        body = None if request.body is None else self._body(request.body)
        # Computed ids are computed again when the replay is recorded: the bodies are the same, so they are, too.
        ids = request.hash_ids if header.hash_ids == "given" or body is None else []
        output_tokens = max(1, request.output_length)
        return Turn(
            prompt="" if body is not None else self._prompt(request, header, rng),
            output_tokens=output_tokens,
            asked_output_tokens=None if body is not None else if_changed(request.output_length, output_tokens),
            input_tokens=None if request.input_length_estimated else request.input_length,
            think_s=request.think_us / 1e6,
            hash_ids=ids,
            block_tokens=header.block_tokens if ids else 0,
            body=body,
        )

    def _body(self, recorded: str) -> bytes:
        """The body to send.

        Raises: TraceFormatError if the model's name is to be replaced in what is no JSON object.
        """
        if self.model is None:
            return recorded.encode()
        try:
            fields = json_text.decode(recorded, dict[str, msgspec.Raw])
        except NOT_JSON as error:
            raise TraceFormatError(f"{self.path}: a body is no JSON object ({error})") from None
        fields["model"] = msgspec.Raw(msgspec.json.encode(self.model))
        return msgspec.json.encode(fields)

    def _prompt(self, request: TraceRequest, header: TraceHeader, rng: np.random.Generator) -> Prompt:
        """A prompt made from hash ids.

        Raises: UsageError without words to make it of.
        """
        if self.words is None:
            raise UsageError(f"{self.path} has requests without a body; their prompts need a tokenizer to be made anew")
        covered = len(request.hash_ids) * header.block_tokens >= request.input_length
        prompts = BlockPrompts(self.words, header.block_tokens)
        return prompts.prompt(request.hash_ids, request.input_length, 0 if covered else draw_seed(rng))
