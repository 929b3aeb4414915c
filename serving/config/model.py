"""The checkpoint to serve, and the device that computes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.config.hub_reference import HubReference
from serving.config.key import key

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

    path: Path = key(
        "Hugging Face checkpoint folder, relative to this file; or, if there is no such folder, `org/name` or"
        " `org/name@revision`, fetched from the Hugging Face Hub"
    )
    tokenizer: str = key(
        "folder of tokenizer and chat template, relative to this file; empty = the checkpoint's", default=""
    )
    name: str = key("name that clients send as `model`; empty = the folder's name, or `org/name`", default="")
    dtype: DType = key("computation type; `auto` = the checkpoint's own, bfloat16 or float32", default="auto")
    device: Device = key("where tensors live; `auto` = CUDA where there is one, else the CPU", default="auto")
    short_weights: ShortWeights = key(
        "bfloat16 weights in 12 bits a number, restored in cache: same results, three quarters of the memory reads;"
        " `auto` = with AMX; on Zen 5, if the last-level cache does not hold them all",
        default="auto",
    )
    expert_results: ExpertResults = key(
        "numbers in which results of routed experts are weighted and added: `float32` = as they were computed;"
        " `bfloat16` = rounded before, as CloudMatrix-Infer sends them, half the bytes between ranks; every instance"
        " does so, alone or in a group, so that an answer is the same everywhere",
        default="float32",
    )
    tools: ToolFamily = key(
        "form in which the model calls tools and reasons; `auto` = as its chat template tells, `none` = it does not",
        default="auto",
    )
    most_calls: int = key(
        "calls of a turn where `tool_choice` demands one: small models repeat calls up to `max_tokens`; 0 = no bound",
        default=8,
        low=0,
        high=1000,
    )
    version: str = key(
        "names these weights in the pool; empty = the Hub's commit, or a digest of their content",
        default="",
    )
    reasoning: bool = key(
        "thinks before it answers: its generated blocks are of no use to the next turn", default=False
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
