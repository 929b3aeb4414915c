"""Results that other commands have left in the demo's folder."""

from pathlib import Path
from typing import Any

from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.tools.demo.step import StepError


def read_result_file(path: Path) -> dict[str, Any]:
    """A JSON object. Raises: StepError if the file is none."""
    try:
        found = parse_json(read_regular_text(path))
    except (OSError, ValueError) as error:
        raise StepError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StepError(f"{path} holds no JSON object")
    return found
