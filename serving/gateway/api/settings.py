"""Settings of the HTTP API: the served model, limits and keys."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from serving.config.gateway import Media
from serving.errors import ModelError
from serving.gateway.api.http.errors import from_validation
from serving.gateway.api.schema import GenerationRequest
from serving.gateway.api.templates.chat_template import ChatTemplate, load_chat_template
from serving.gateway.api.templates.control_tokens import ControlTokens
from serving.gateway.api.tokenizer import Tokenizer, read_json
from serving.gateway.api.tools.choose import FAMILIES, family_of
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import Spelling
from serving.gateway.api.tools.marks import ToolMarks
from serving.gateway.core.batches import BatchLimits
from serving.gateway.core.kept_responses import KeepLimits
from serving.gateway.core.kv_hints import HintLimits
from serving.gateway.core.work_items import WorkLimits
from serving.grammar.compile import Grammars
from serving.sockets.host_names import AllowedHosts


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values of the model folder's generation_config.json, used for fields that a request omits."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "GenerationDefaults":
        """Read the known keys; null means absent.

        Raises: ModelError for values that would be invalid in a request.
        """
        known = {name: config[name] for name in cls.__slots__ if config.get(name) is not None}
        fields = {"max_tokens" if name == "max_new_tokens" else name: value for name, value in known.items()}
        try:
            GenerationRequest.model_validate(fields)
        except ValidationError as error:
            raise ModelError(f"generation_config.json: {from_validation(error)}; correct or remove it") from error
        return cls(**known)


@dataclass(frozen=True)
class ServedModel:
    """A model's public description.

    Args:
        names: ids that requests may use; the first is reported.
        root: origin of the model, for /v1/models; no path of this node, see `model_root`.
        max_model_len: prompt plus output, in tokens.
        eos_ids: tokens that end a sequence unless the caller ignores them.
        created: Unix time, seconds.
    """

    names: tuple[str, ...]
    root: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int
    eos_ids: tuple[int, ...]
    created: int
    defaults: GenerationDefaults = GenerationDefaults()
    vocab_size: int | None = None
    """Rows of the model's embedding, if that differs from the tokenizer's size."""
    tools: str = "auto"
    """Name of the family for tool calls and reasoning; `auto` = detected from the template, `none` = no family."""
    most_calls: int = 8
    """Maximum number of calls in a turn that must have calls; 0 = no limit."""
    fingerprint: str = ""
    """`system_fingerprint` of responses; empty = none."""

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """Control tokens, which only the chat template may produce."""
        return ControlTokens(self.tokenizer, "" if self.chat_template is None else self.chat_template.source)

    @cached_property
    def tool_family(self) -> Family | None:
        """The model's family for tool calls and reasoning."""
        if self.tools != "auto":
            return FAMILIES.get(self.tools)
        template = "" if self.chat_template is None else self.chat_template.source
        return family_of(template, self._added_tokens)

    @cached_property
    def tool_marks(self) -> ToolMarks:
        """Markers of its family, which must not be None."""
        assert self.tool_family is not None, "the caller has looked"
        return self.tool_family.marks_of(self._added_tokens)

    @cached_property
    def spelling(self) -> Spelling:
        """Spelling of its family's markers in grammars."""
        return Spelling(self.tool_marks, self.token_limit)

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        added = self.tokenizer.raw.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if number < self.token_limit}

    @cached_property
    def grammars(self) -> Grammars:
        """Compiled grammars of requests."""
        return Grammars(lambda: self.tokenizer.vocabulary(self.token_limit))

    @cached_property
    def tokenizer_info(self) -> dict[str, Any]:
        """The tokenizer's own configuration with the chat template in use, in vLLM's format."""
        template = {} if self.chat_template is None else {"chat_template": self.chat_template.source}
        origin = self.tokenizer.config.get("name_or_path")  # path at training or loading time, if that was saved
        named = {"name_or_path": PurePath(origin).name} if isinstance(origin, str) and _is_path(origin) else {}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **self.tokenizer.config, **named, **template}

    @property
    def token_limit(self) -> int:
        """Token ids below this are accepted in prompts and biases."""
        return self.vocab_size or self.tokenizer.vocab_size

    @classmethod
    def from_folder(
        cls, folder: Path | str, *, names: tuple[str, ...], max_model_len: int, created: int
    ) -> "ServedModel":
        """Read tokenizer, template, defaults and end tokens of a Hugging Face folder.

        Raises: ModelError when the folder cannot be served.
        """
        if not names:
            raise ModelError("a served model needs at least one name")
        tokenizer = Tokenizer.from_folder(folder)
        config = read_json(Path(folder) / "config.json")
        generation = read_json(Path(folder) / "generation_config.json")
        ends = {*_ids(generation.get("eos_token_id", config.get("eos_token_id")))}
        ends |= {tokenizer.eos_id} - {None}  # type: ignore[arg-type]  # None removed in the same expression
        return cls(
            names=names,
            root=model_root(Path(folder)),
            tokenizer=tokenizer,
            chat_template=load_chat_template(folder, tokenizer.special_tokens),
            max_model_len=max_model_len,
            eos_ids=tuple(sorted(ends)),
            created=created,
            defaults=GenerationDefaults.from_json(generation),
            vocab_size=_vocab_size(config),
        )


def _vocab_size(config: dict[str, Any]) -> int | None:
    size = config.get("vocab_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 0 < size < 2**31):
        raise ModelError(f"config.json: vocab_size = {str(size)[:40]} is not a number of tokens; correct or remove it")
    return size


def _ids(value: object) -> list[int]:
    """`eos_token_id` is an id, a list of ids or absent; some write -1 for none."""
    values = value if isinstance(value, list) else [value]
    ids = [i for i in values if isinstance(i, int) and i >= 0]
    if any(i >= 2**31 for i in ids):
        raise ModelError(f"eos_token_id = {str(max(ids))[:40]} is not a token; correct or remove it")
    return ids


def hash_api_key(key: str) -> bytes:
    """Digest stored for a key. Keys are long random strings, so a fast hash without salt is enough."""
    return hashlib.sha256(key.encode()).digest()


@dataclass(frozen=True, slots=True)
class NamespaceKeys:
    """A tenant's name, the digests of its keys, by `hash_api_key`, and the weight of each key."""

    name: str
    key_hashes: tuple[bytes, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Limits and keys of the endpoint. Without a key of any kind the endpoint is open.

    Args:
        api_key_hashes: digests, by `hash_api_key`, of the keys of namespace `default`.
        admin_key_hashes: digests of the keys that may also read and delete other tenants' cache.
        namespaces: further tenants with their keys.
        pool_salt: secret from which every namespace's salt is derived.
        max_body_bytes: larger request bodies get 413.
        max_sequences: prompts x n of one request. max_n: choices for one prompt.
        max_logprob_entries: most log-probabilities in one response.
        max_logprobs: most top alternatives per token in a request.
        request_timeout_s: deadline of a request from its arrival, which the backend enforces.
        deadline_grace_s: time after the deadline at which the gateway abandons the backend.
        per_request_metrics: report each request's times (vLLM's --enable-per-request-metrics).
        keepalive_s: a comment line is sent into OpenAI's streams of chunks silent for this long; 0 = never (some load
            generators cannot read comments).
        event_silence_s: an event is sent into streams of Responses and Messages silent for this long; 0 = never.
        encode_in_thread_bytes: prompts longer than this are tokenized off the event loop.
        allowed_origins: origins whose web pages may call, `*` = all.
        hosts: accepted host names of requests; None = any.
        placeholder_tokens: whether NPUs are simulated, so that the output is meaningless.
        pools_page: address of the dashboard's page about pools; empty = unknown.
        root_path: path under which a proxy serves this server; empty = none.
        keep: limits of the stored /v1/responses.
        media: what becomes of images, files and sound in conversations.
        background: limits of background responses.
        max_file_bytes: largest file that may be uploaded.
        files: limits of the stored files of each tenant.
        batches: limits of the batches of each tenant that are known. batch: of their execution.
        hints: what KV hints may ask for.
    """

    version: str = "0"
    api_key_hashes: tuple[bytes, ...] = ()
    admin_key_hashes: tuple[bytes, ...] = ()
    namespaces: tuple[NamespaceKeys, ...] = ()
    pool_salt: bytes = field(default=b"", repr=False)
    max_body_bytes: int = 8 * 2**20
    max_sequences: int = 256
    max_n: int = 128
    max_logprob_entries: int = 500_000
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_stop_length: int = 1024
    request_timeout_s: float = 600.0
    deadline_grace_s: float = 5.0
    per_request_metrics: bool = True
    keepalive_s: float = 0.0
    event_silence_s: float = 15.0
    encode_in_thread_bytes: int = 32 * 2**10
    allowed_origins: tuple[str, ...] = ()
    hosts: AllowedHosts | None = None
    placeholder_tokens: bool = False
    pools_page: str = ""
    root_path: str = ""
    keep: KeepLimits = field(default_factory=KeepLimits)
    media: Media = "note"
    background: WorkLimits = field(default_factory=WorkLimits)
    max_file_bytes: int = 64 << 20
    files: WorkLimits = field(default_factory=lambda: WorkLimits(items=1000, size_bytes=256 << 20, seconds=259_200.0))
    batches: WorkLimits = field(default_factory=lambda: WorkLimits(seconds=259_200.0))
    batch: BatchLimits = field(default_factory=BatchLimits)
    hints: HintLimits = field(default_factory=HintLimits)


def model_root(folder: Path) -> str:
    """Public name of a model's folder, or the model's Hub name if the folder is in the Hub's cache."""
    kept = folder.parent.parent.name
    if folder.parent.name == "snapshots" and kept.startswith("models--"):
        return kept.removeprefix("models--").replace("--", "/")
    return folder.name or folder.resolve().name


def _is_path(name: str) -> bool:
    """Whether a name is a path and not the Hub's `organisation/model`."""
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1
