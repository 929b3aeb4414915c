"""Which references there are, and what makes each."""

from collections.abc import Callable

from tests.pages import ROOT
from tests.references.api import api
from tests.references.commands import commands
from tests.references.configuration import configuration
from tests.references.metrics import metrics

FOLDER = ROOT / "docs" / "reference"
REFERENCES: dict[str, Callable[[], str]] = {
    "api.md": api,
    "commands.md": commands,
    "configuration.md": configuration,
    "metrics.md": metrics,
}
