"""An import as seen from a terminal: a bar and the result on stderr, only the folder on stdout."""

import logging
from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from loadgen.progress_bar import ProgressBar, ProgressConsole
from loadgen.report import numbers
from serving.errors import ModelError
from serving.model.config import read_architecture
from serving.terminal import endings_as_interrupt
from serving.tools.importing.run import Dtype, ImportReport, import_gguf

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
