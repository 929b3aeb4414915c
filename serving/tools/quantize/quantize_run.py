"""The whole quantisation: layer by layer through the original and all trials, writing the chosen one's result.

One layer is read at a time and is processed by every trial before the next is read. Memory is that of a layer in
float32, of its products' inputs during calibration, and of one hidden state per token and trial.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hardware.regular_file import IrregularFileError
from loadgen.progress_bar import ProgressBar
from loadgen.report import numbers
from loadgen.report.table import select, terminal_table
from serving.config.model import folder_name
from serving.errors import ConfigError, ModelError
from serving.gateway.api.tokenizer import read_json
from serving.model.architecture import Architecture
from serving.model.checkpoint import Checkpoint, Int8Weight
from serving.model.checkpoint_writer import CheckpointWriter, refuse_used
from serving.model.config import read_architecture
from serving.model.loader import open_checkpoint
from serving.model.quantization import INT8_ACTIVATIONS, INT8_FORMAT, INT8_METHOD, INT8_WEIGHTS
from serving.model.tensors import block_tensors, mtp_optional, mtp_tensors
from serving.model.weight_files import INDEX
from serving.regular_file import check_regular
from serving.terminal import endings_as_interrupt, table_console, write_file
from serving.tools.quantize.quantize_report import (
    RANDOM_NOTE,
    QuantizationReport,
    TrialResult,
    accuracy_table,
    as_json,
    as_markdown,
    class_errors,
)
from serving.tools.quantize.quantize_settings import Settings
from serving.tools.quantize.stream import CalibrationText, LayerRunner, read_text
from serving.tools.quantize.structure import block_structure, draft_structure, ignore_patterns
from serving.tools.quantize.tensors_in_memory import Tensors, read_tensors
from serving.tools.quantize.trial import HEAD, LAST_NORM, DraftLayer, Original, Trial, measure

# Form of the quantised checkpoint: its configuration, floating-point tensors, and companion files.

logger = logging.getLogger(__name__)

_ROUTER = ".mlp.gate.weight"
_COPIED_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_COPIED_PREFIXES = ("LICENSE", "NOTICE", "tokenization_", "configuration_", "modeling_")


def companions(source: Path) -> Iterator[Path]:
    """Files of a checkpoint folder that a quantised one has too: tokenizer, template, licence.

    Effects: logs files that are skipped because they are no regular file of the folder.
    """
    for path in sorted(source.iterdir()):
        if path.is_file() and _is_copied(path.name):
            try:
                check_regular(path, within=source)
            except IrregularFileError as error:
                logger.warning("not copied: %s", error)
                continue
            yield path


def quantised_config(raw: Mapping[str, object], kept: frozenset[str], *, untie: bool) -> dict[str, object]:
    """`config.json` of the quantised model.

    Args:
        raw: the original's.
        kept: operator classes that stayed in floating point on request.
        untie: the head has become a tensor of its own, quantised separately from the embedding.
    """
    group = {
        "targets": ["Linear"],
        "weights": {**INT8_WEIGHTS, "group_size": None, "block_structure": None, "actorder": None},
        "input_activations": {**INT8_ACTIVATIONS, "group_size": None, "block_structure": None, "actorder": None},
        "output_activations": None,
    }
    quantization = {
        "quant_method": INT8_METHOD,
        "format": INT8_FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore_patterns(kept),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
    return {**raw, **({"tie_word_embeddings": False} if untie else {}), "quantization_config": quantization}


def stored_as(name: str, given: Tensor | Int8Weight, stored: str, dtype: str) -> Tensor | Int8Weight:
    """A floating-point tensor in the form that the original checkpoint has it in; routers in float32 (see `folding`).

    Args:
        name: of the tensor.
        stored: safetensors' name of that form; one that is none of ours (FP8) becomes the model's `dtype`.
    """
    if isinstance(given, Int8Weight) or name.endswith(_ROUTER):
        return given
    forms = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    model = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return given.to(forms.get(stored, model))


def _is_copied(name: str) -> bool:
    if name in ("config.json", INDEX) or name.endswith(".safetensors"):
        return False
    return name.endswith(_COPIED_SUFFIXES) or name.startswith(_COPIED_PREFIXES)


REPORT_PAGE = "quantization.md"
REPORT_DATA = "quantization.json"
_EMBED = "model.embed_tokens.weight"
_CHOSEN = "chosen"

Tell = Callable[[str, int, int], None]
"""Reports progress; called with the name of the phase, parts done and parts in total."""


def quantise(model: Path, out: Path, files: Sequence[Path], settings: Settings, tell: Tell) -> QuantizationReport:
    """Quantise a checkpoint.

    Args:
        model: the original's folder.
        out: new folder.
        files: calibration text; none = random tokens.
    Raises: ModelError if the original cannot be read or has values that are no numbers; ConfigError if it is INT8
        already, `out` is in use, or the text does not do.
    Effects: writes the folder, its report included.
    """
    refuse_used(out)
    config = read_architecture(model)
    if config.quantization.int8:
        raise ConfigError(f"{model} is INT8 already: give its original checkpoint")
    checkpoint, drafts = open_checkpoint(config, model, None)
    text = read_text(model, config, files, settings)
    with torch.inference_mode(), CheckpointWriter(out) as writer:
        report = _Work(model, config, checkpoint, drafts, text, settings, writer, tell).done()
        untie = config.tie_word_embeddings and "head" not in settings.kept
        raw = quantised_config(read_json(model / "config.json"), settings.kept, untie=untie)
        texts = {REPORT_PAGE: as_markdown(report), REPORT_DATA: as_json(report)}
        writer.finish(raw, texts, companions(model))
    return report


@dataclass
class _Work:
    """One run over a model."""

    model: Path
    config: Architecture
    checkpoint: Checkpoint
    drafts: range
    text: CalibrationText
    settings: Settings
    writer: CheckpointWriter
    tell: Tell

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self._parts_done = 0
        runs = self.settings.runs()
        self._parts = (len(self.config.layers) + 1 + len(self.drafts)) * (1 + len(runs))
        self._embed = read_tensors(self.checkpoint, frozenset({_EMBED}))[_EMBED]
        held_out, calibration = self.text.held_out, self.text.calibration
        held_out_start = LayerRunner(self.config, held_out), self._embed[held_out.fed]
        start = LayerRunner(self.config, calibration), self._embed[calibration.fed]
        self._original = Original(self.config, *held_out_start)
        kept = self.settings.kept
        self._trials = {name: Trial(self.config, steps, kept, held_out_start, start) for name, steps in runs.items()}

    def done(self) -> QuantizationReport:
        """Complete all work except the final files."""
        self._write({_EMBED: self._embed})
        for layer in range(len(self.config.layers)):
            self._block(layer)
        self._head()
        for layer in self.drafts:
            self._draft(layer)
        perplexity, accuracy = measure(self._original, self._trials, self.text.held_out.next)
        chosen = self._trials[_CHOSEN]
        return QuantizationReport(
            model=folder_name(self.model.resolve()),
            steps=tuple(self.settings.steps.on()),
            kept=tuple(sorted(self.settings.kept)),
            text=self.text.source,
            random_text=self.text.is_random,
            calibration_tokens=self.text.calibration.tokens,
            held_out_tokens=self.text.held_out.tokens,
            window_tokens=self.text.held_out.length,
            seed=self.settings.seed,
            bytes_before=sum(path.stat().st_size for path in self.model.glob("*.safetensors")),
            bytes_after=self.writer.total_bytes,
            elapsed_s=time.monotonic() - self._begun,
            perplexity=perplexity,
            trials={name: TrialResult(accuracy[name], class_errors(t.errors)) for name, t in self._trials.items()},
            expert_rows=chosen.expert_rows,
        )

    def _block(self, layer: int) -> None:
        tensors = read_tensors(self.checkpoint, frozenset(block_tensors(self.config, layer)))
        structure = block_structure(self.config, layer)
        self._through(
            f"layer {layer}",
            lambda original: original.block(layer, tensors),
            lambda trial: trial.quantise_block(layer, tensors, structure),
        )

    def _head(self) -> None:
        tied = self.config.tie_word_embeddings
        tensors = read_tensors(self.checkpoint, frozenset({LAST_NORM} if tied else {LAST_NORM, HEAD}))
        if tied:
            tensors[HEAD] = self._embed
        self._through(
            "head",
            lambda original: original.head(dict(tensors)),
            lambda trial: trial.quantise_head(tensors, drafts=bool(self.drafts)),
        )

    def _draft(self, layer: int) -> None:
        """A draft layer; one that follows another is calibrated as if it were the first."""
        prefix = f"model.layers.{layer}."
        possible = mtp_tensors(self.config) | mtp_optional(self.config)
        own = frozenset(name for name in possible if name.startswith(prefix))
        tensors = read_tensors(self.checkpoint, own & self.checkpoint.names)
        own_head = prefix + "shared_head.head.weight" in tensors
        structure = block_structure(self.config, layer) + draft_structure(self.config, layer, own_head=own_head)
        draft = DraftLayer(layer, self._embed)
        self._through(
            f"draft layer {layer}",
            lambda original: original.draft(draft, dict(tensors)),
            lambda trial: trial.quantise_draft(draft, tensors, structure),
        )

    def _through(
        self, what: str, original: Callable[[Original], None], quantise_part: Callable[[Trial], Tensors]
    ) -> None:
        """Take the original and all trials through one part of the model; write what the chosen one gives."""
        self._tell(what)
        original(self._original)
        for name, trial in self._trials.items():
            self._tell(f"{what}, {name}")
            try:
                result = quantise_part(trial)
            except ModelError as error:
                raise ModelError(f"{what} of {self.model} cannot be quantised: {error}") from error
            if name == _CHOSEN:
                self._write(result)

    def _write(self, tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name in self.checkpoint.names:
                self.writer.add(name, stored_as(name, tensor, self.checkpoint.stored_dtype(name), self.config.dtype))
            elif isinstance(tensor, Int8Weight):  # a head that was the embedding until now
                self.writer.add(name, tensor)

    def _tell(self, what: str) -> None:
        self.tell(what, self._parts_done, self._parts)
        self._parts_done += 1


# The same from a terminal: a bar on stderr, the result as tables on stdout.

_COLUMNS = ("", "perplexity", "÷ original", "KL [nat]", "KL median", "top-1", "error")
"""Columns that fit on a terminal."""


def run_on_console(
    model: Path, out: Path, files: Sequence[Path], settings: Settings, report_file: Path | None, *, quiet: bool
) -> int:
    """Quantise and print the result.

    Args:
        quiet: no progress.
    Returns: 0.
    Raises: what `quantise` raises; ConfigError if the report cannot be written.
    Effects: writes the folder and the report, prints.
    """
    with endings_as_interrupt(), ProgressBar("reading", counted=True, quiet=quiet) as bar:
        report = quantise(
            model,
            out,
            files,
            settings,
            lambda what, done, of: bar.update(done, what=what, total=of),
        )
    _print(report, out)
    if report_file is not None:
        _save(report, report_file)
    return 0


def _save(report: QuantizationReport, path: Path) -> None:
    text = as_json(report) if path.suffix == ".json" else as_markdown(report)
    write_file(path, text.encode())


def _print(report: QuantizationReport, out: Path) -> None:
    console = table_console()
    title = f"{report.model} in INT8, on {report.held_out_tokens:,} held-out tokens"
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(terminal_table(select(accuracy_table(report), *_COLUMNS), console.width))
    if report.random_text:
        console.print(RANDOM_NOTE)
    least = [min(seen.values()) for seen in report.expert_rows.values()]
    if least:
        console.print(f"The expert with the least calibration text saw {min(least):,} rows.")
    size = f"{numbers.size(report.bytes_before)} -> {numbers.size(report.bytes_after)}"
    console.print(
        f"{size} in {numbers.duration(report.elapsed_s)}: {out} (report: {out / REPORT_PAGE})", soft_wrap=True
    )
