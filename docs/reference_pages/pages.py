"""The generated references, and the maker of each."""

from collections.abc import Callable

from docs.reference_pages.api import api
from docs.reference_pages.commands import commands
from docs.reference_pages.configuration import configuration
from docs.reference_pages.metrics import metrics
from tests.pages import ROOT

FOLDER = ROOT / "docs" / "reference"
REFERENCES: dict[str, Callable[[], str]] = {
    "api.md": api,
    "commands.md": commands,
    "configuration.md": configuration,
    "metrics.md": metrics,
}
