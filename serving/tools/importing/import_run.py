"""A whole import: tables read and checked, then tensor by tensor from the file into the folder.

Memory is that of one tensor in float32 (of stacked experts: one of them) and of the shard that is being filled.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.text import Text

from loadgen.progress_bar import ProgressBar, ProgressConsole
from loadgen.report import numbers
from serving.errors import ModelError
from serving.model.checkpoint_writer import CheckpointWriter, refuse_used
from serving.model.config import read_architecture
from serving.terminal import endings_as_interrupt
from serving.tools.importing.description import EMBEDDING, Description, Part, check
from serving.tools.importing.gguf_deepseek import describe_deepseek
from serving.tools.importing.gguf_dense import describe_dense
from serving.tools.importing.gguf_file import GgufFile, Value
from serving.tools.importing.gguf_tokenizer import GgufVocabulary, build_tokenizer

Dtype = Literal["bfloat16", "float32"]
DTYPES: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DESCRIBERS: dict[str, Callable[[GgufFile, str], Description]] = {
    "llama": describe_dense,
    "qwen2": describe_dense,
    "qwen3": describe_dense,
    "deepseek2": describe_deepseek,
}
"""By `general.architecture`."""
SHARD_BYTES = 1 << 30
_FLOAT32 = ("e_score_correction_bias",)
"""Ends of names of tensors that are float32 in every checkpoint."""
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Names in generation_config.json, and in GGUF below `general.sampling.`."""

Tell = Callable[[str, int, int], None]
"""Called with (what is read, bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """One import.

    Args:
        kinds: tensors of the file by the type they are stored in.
        stored_bytes, written_bytes: of the weights.
    """

    architecture: str
    kinds: Counter[str]
    parameters: int
    stored_bytes: int
    written_bytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """All of a model but its tensors, which are read by `parts`.

    Args:
        config: for config.json.
        texts: further files by name.
    """

    file: GgufFile
    architecture: str
    parts: Sequence[Part]
    config: Mapping[str, object]
    texts: Mapping[str, str]


def plan_import(path: Path, dtype: Dtype) -> ImportPlan:
    """Read a file's tables, and check that they make a model.

    Raises: ModelError if the file cannot be read or its model is not known.
    """
    file = GgufFile.open(path)
    architecture = file.values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in DESCRIBERS:
        known = ", ".join(DESCRIBERS)
        raise ModelError(f"{path} is of the architecture {str(architecture)[:40]!r}, which is not read; {known} are")
    try:
        described = DESCRIBERS[architecture](file, architecture)
        check(file, described.parts, described.ignored)
        config, texts = _texts(file, described.config, dtype)
    except ModelError as error:
        raise ModelError(f"{path} cannot be imported: {error}") from error
    return ImportPlan(file, architecture, described.parts, config, texts)


def import_gguf(
    path: Path, out: Path, dtype: Dtype, tell: Tell, copies: Iterable[Path] = (), *, shard_bytes: int = SHARD_BYTES
) -> ImportReport:
    """Make a checkpoint folder of a GGUF file.

    Args:
        path: the file; any of them, if a model was split.
        out: new folder.
        copies: files that the folder gets, too.
        shard_bytes: of each file of weights, at most.
    Raises: as `plan_import`; ConfigError if `out` is in use, or cannot be written.
    Effects: writes the folder.
    """
    begun = time.monotonic()
    refuse_used(out)
    plan = plan_import(path, dtype)
    tensors = plan.file.tensors
    stored = sum(tensor.size_bytes for tensor in tensors.values())
    parameters = done = 0
    with CheckpointWriter(out, shard_bytes) as writer:
        for part in plan.parts:
            sources = [tensors[name] for name in part.sources]
            tell(sources[0].name, done, stored)
            for name, tensor in part.make(sources):
                parameters += tensor.numel()
                writer.add(name, tensor if name.endswith(_FLOAT32) else tensor.to(DTYPES[dtype]))
            done += sum(source.size_bytes for source in sources)
        tell("writing", stored, stored)
        writer.finish(plan.config, plan.texts, copies)
    return ImportReport(
        architecture=plan.architecture,
        kinds=Counter(tensor.kind.name for tensor in tensors.values()),
        parameters=parameters,
        stored_bytes=stored,
        written_bytes=writer.total_bytes,
        elapsed_s=time.monotonic() - begun,
    )


def _texts(file: GgufFile, config: dict[str, object], dtype: Dtype) -> tuple[dict[str, object], dict[str, str]]:
    """config.json with the special tokens, and the other files by name."""
    vocabulary = GgufVocabulary.read(file.values, file.tensors[EMBEDDING].shape[0])
    tokenizer = build_tokenizer(vocabulary)
    ends = vocabulary.ends()
    begin = {} if (bos := vocabulary.special("bos")) is None else {"bos_token_id": bos}
    first_end = {"eos_token_id": ends[0]} if ends else {}
    texts = {
        "tokenizer.json": tokenizer.raw.to_str(pretty=True),
        "tokenizer_config.json": _json({**tokenizer.config, "model_max_length": config["max_position_embeddings"]}),
        "generation_config.json": _json(
            {**begin, **({"eos_token_id": ends} if ends else {}), **_sampling(file.values)}
        ),
    }
    template = file.values.get("tokenizer.chat_template")
    if isinstance(template, str):
        texts["chat_template.jinja"] = template
    return {**config, **begin, **first_end, "torch_dtype": dtype}, texts


def _sampling(values: Mapping[str, Value]) -> dict[str, Value]:
    keys = {name: f"general.sampling.{own}" for name, own in _SAMPLING.items()}
    found = {name: values[key] for name, key in keys.items() if key in values}
    return {"do_sample": True, **found} if found else {}


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# An import as seen from a terminal: a bar and the result on stderr, only the folder on stdout.

logger = logging.getLogger(__name__)


def import_on_console(path: Path, out: Path, dtype: Dtype, *, quiet: bool, copies: Iterable[Path] = ()) -> None:
    """Import a file and report the result.

    Args:
        quiet: no output on stderr.
    Raises: as `import_gguf`.
    Effects: writes the folder, prints on stderr; logs a warning if it cannot be served.
    """
    with endings_as_interrupt(), ProgressBar("reading", quiet=quiet) as bar:
        report = import_gguf(path, out, dtype, lambda what, done, of: bar.update(done, what=what, total=of), copies)
    ProgressConsole(quiet=quiet).print(Text(_summary(path, report, dtype)))
    try:
        read_architecture(out)
    except ModelError as error:
        logger.warning("the folder is complete, but this server does not support the model: %s", error)


def _summary(path: Path, report: ImportReport, dtype: Dtype) -> str:
    kinds = ", ".join(kind for kind, _ in report.kinds.most_common())
    return (
        f"{path.name}: {report.architecture}, {report.parameters:,} parameters, {numbers.size(report.stored_bytes)} of "
        f"{kinds} -> {numbers.size(report.written_bytes)} of {dtype} in {numbers.duration(report.elapsed_s)}"
    )
