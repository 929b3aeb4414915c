"""Names of models on the Hugging Face Hub, and how they differ from folders.

A text is a folder if that folder exists, or if its form is not `org/name` or `org/name@revision`: `./org/name` and
`/org/name` are always folders.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_PART = r"\w(?:[\w.-]*\w)?"
_FORM = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model on the Hub.

    Args:
        repository: "org/name".
        revision: branch, tag or commit; None = the main branch.
    """

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubReference | None":
        """Parse a text; None if it does not have the form of a Hub name."""
        found = _FORM.fullmatch(text)
        return cls(found["repository"], found["revision"]) if found else None

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")


def hub_reference(text: str, base: Path) -> HubReference | None:
    """The model on the Hub that a text names; None if it names a folder.

    Args:
        base: folder that relative paths start from.
    Effects: checks whether that folder exists.
    """
    reference = HubReference.parse(text)
    return None if reference is None or (base / text).exists() else reference


def folder_name(folder: Path) -> str:
    """Name of a model's folder; "org/name" for a commit in Hugging Face's cache."""
    model = folder.parent.parent.name
    if folder.parent.name == "snapshots" and model.startswith("models--"):
        return model.removeprefix("models--").replace("--", "/", 1)
    return folder.name
