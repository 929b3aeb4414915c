"""The checkpoint to serve, and the device that computes it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import ENGINES, GATEWAY, restarts, upgrades

# Names of models on the Hugging Face Hub, and how they differ from folders.
#
# A text is a folder if that folder exists, or if its form is not `org/name` or `org/name@revision`: `./org/name` and
# `/org/name` are always folders.

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


# The checkpoint to serve, and the device that computes it.

DType = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]
ShortWeights = Literal["auto", "on", "off"]
ExpertResults = Literal["float32", "bfloat16"]
ToolFamily = Literal[
    "auto",
    "none",
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "glm",
    "harmony",
    "hermes",
    "kimi-k2",
    "llama",
    "mistral",
    "mistral-think-text",
    "qwen-coder",
]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`[model]`"""

    UPGRADE = upgrades(restarts(GATEWAY, *ENGINES))
    LIVE_ONLY = "tokenizer dtype device short_weights expert_results tools most_calls version"

    path: Path = key(
        "Hugging Face checkpoint folder, relative to this file; if there is no such folder, `org/name` or "
        "`org/name@revision`, downloaded from the Hugging Face Hub"
    )
    tokenizer: str = key(
        "folder of tokenizer and chat template, relative to this file; empty = the checkpoint's", default=""
    )
    name: str = key("name that clients send as `model`; empty = the folder's name, or `org/name`", default="")
    dtype: DType = key("compute type; `auto` = the checkpoint's own, bfloat16 or float32", default="auto")
    device: Device = key("device of the tensors; `auto` = CUDA if available, else CPU", default="auto")
    short_weights: ShortWeights = key(
        "bfloat16 weights stored in 12 bits each and expanded in cache: same results, three quarters of the memory "
        "traffic; `auto` = with AMX; on Zen 5, if the last-level cache does not hold them all",
        default="auto",
    )
    expert_results: ExpertResults = key(
        "number format in which outputs of routed experts are weighted and summed: `float32` = as computed; "
        "`bfloat16` = rounded first, as CloudMatrix-Infer sends them, half the bytes between ranks; applies to every "
        "instance, single or grouped, so that results are equal everywhere",
        default="float32",
    )
    tools: ToolFamily = key(
        "format of the model's tool calls and reasoning; `auto` = detected from its chat template, `none` = not "
        "supported",
        default="auto",
    )
    most_calls: int = key(
        "tool calls per turn where `tool_choice` requires one: small models repeat calls until `max_tokens`; 0 = no "
        "limit",
        default=8,
        low=0,
        high=1000,
    )
    version: str = key(
        "name of these weights in the pool; empty = the Hub's commit, or a digest of their content",
        default="",
    )
    reasoning: bool = key(
        "the model reasons before it answers: its generated blocks cannot be reused by the next turn", default=False
    )

    @property
    def hub(self) -> HubReference | None:
        """Model of the Hugging Face Hub that is not fetched yet; None for a folder, whose path is absolute."""
        return None if self.path.is_absolute() else HubReference.parse(str(self.path))

    @property
    def served_name(self) -> str:
        """Name that clients send as `model`."""
        return self.name or self.path.name

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the tokenizer, chat template and end tokens."""
        return Path(self.tokenizer) if self.tokenizer else self.path
