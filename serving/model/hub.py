"""Downloads checkpoints from the Hugging Face Hub, with its own library into its own cache.

Only what serving reads: safetensors, their index, configuration, tokenizer and chat template. The revision is resolved
to a commit first, and every file is requested by that commit, so a branch that moves during the download has no effect.
The small files are downloaded before the weights: an unsupported model is refused before its gigabytes are downloaded.
Files are downloaded sequentially in the main thread, so that Ctrl-C stops a download immediately; the library itself
splits a large file if the Hub stores it in chunks.

Import it only for a download: importing `huggingface_hub` takes a quarter of a second.
"""

import errno
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_download, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils._http import default_client_factory
from huggingface_hub.utils.tqdm import disable_progress_bars

from loadgen.report import numbers
from serving.config.model import HubReference
from serving.errors import ConfigError, ModelError, ServingError
from serving.model.config import read_architecture
from serving.model.weight_files import INDEX, indexed_files

# Validates the file names that a Hub or a mirror sends, so that none can be a path.
#
# `huggingface_hub` builds file names from server data: `ETag` and `X-Linked-ETag` name a blob and its lock,
# `X-Repo-Commit` a folder, also in 404 responses, `X-Xet-Hash` a file in a shared store, and the commit in a listing
# a folder and the content of a reference. All of these are digests. They are checked in the library's own
# transport, before it reads them, so that no second response can differ from the checked one.

_DIGEST = re.compile("[0-9a-fA-F]{40,64}")
_NAMES = ("x-linked-etag", "x-repo-commit", "x-xet-hash")
"""Headers used as names. `etag` is one only if `x-linked-etag` is absent, in the response to HEAD."""


def is_digest(text: object) -> bool:
    """Whether a text is 40 to 64 hexadecimal digits, which cannot form a path in any combination."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@contextmanager
def names_checked() -> Iterator[None]:
    """Within the block, reject response headers that could become a path.

    A request then raises ModelError on such a header.

    Effects: reopens the library's connections on entry and on exit.
    """
    set_client_factory(_checking_client)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


def _checking_client() -> httpx2.Client:
    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _check_names]}
    return client


def _check_names(response: httpx2.Response) -> None:
    """Raises: ModelError for a header that would become a name but is not a digest."""
    for name in _NAMES:
        _check_header(response, name)
    if response.request.method != "HEAD" or "x-linked-etag" in response.headers or "etag" not in response.headers:
        return
    if response.is_redirect and not is_digest(_bare(response.headers["etag"])):
        del response.headers["etag"]  # belongs to the redirect itself, e.g. to its empty page, not to a file
        return
    _check_header(response, "etag")


def _check_header(response: httpx2.Response, name: str) -> None:
    value = response.headers.get(name)
    if value is not None and not is_digest(_bare(value) if "etag" in name else value):
        raise ModelError(
            f"{response.request.url.copy_with(query=None)} calls its file {ascii(value)[:80]} ({name}), which is "
            "not a digest (40 to 64 hexadecimal digits) and could be a path: nothing was written; use "
            "the Hub itself, or another mirror (HF_ENDPOINT)"
        )


def _bare(etag: str) -> str:
    """An entity tag without mark and quotes, as the library uses it."""
    return etag.lstrip("W/").strip('"')


logger = logging.getLogger(__name__)

Part = Literal["config", "text", "all"]
"""Requested parts: the configuration; also tokenizer and template; also the weights."""
Tell = Callable[[str], None]
Check = Callable[[Path | None, int], None]
"""See `fetch`."""

ANSWER_S = 30.0
"""Timeout for the Hub's first response: a model's listing has a few hundred KB at most."""
_CONFIG = ("config.json", "generation_config.json")
_TEXT = ("chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json", "tokenizer.json", INDEX)
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A folder in the cache and its commit."""

    path: Path
    commit: str


def fetch(
    reference: HubReference,
    tell: Tell,
    part: Part = "all",
    *,
    tokenizer: bool = True,
    check: Check | None = None,
) -> HubFolder:
    """Download the missing files of a model into the cache.

    Args:
        tell: called with one line: the commit, the download, and its location.
        tokenizer: refuse a model without tokenizer before its weights are fetched.
        check: called before the weights are downloaded, first without a folder and with a lower bound of the weights'
            bytes, then with the folder of the small files and the exact bytes; may refuse the model.
    Raises: ModelError if the model or revision does not exist or is not accessible to this user; if the Hub sends a
        file or commit name that could be a path; if the architecture is not supported, or safetensors or
        tokenizer.json are missing; if the Hub cannot be reached and the cache lacks a file; if a file is truncated or
        differs from the listing. ConfigError if the disk is too small.
    Effects: network, writes into the cache.
    """
    try:
        with _own_log(), names_checked():
            return _Download(reference, tell).run(part, tokenizer=tokenizer, check=check)
    except ServingError:
        raise
    except Exception as error:  # of the library, transport or disk: reported as one line with the remedy
        raise ModelError(hub_line(error, reference)) from error


class _Listing(HfApi):
    """The library's interface, with a timeout for the Hub's listing of a model, which is kept."""

    sizes: Mapping[str, int] | None = None
    """Bytes of each file; None until the Hub has responded."""

    def repo_info(self, repo_id: str, *, revision: str | None = None, **_: object) -> ModelInfo:
        """The files that the Hub lists. Effects: network; keeps their sizes."""
        found = self.model_info(repo_id, revision=revision, files_metadata=True, timeout=ANSWER_S)
        _check_commit(found.sha, repo_id)
        self.sizes = {file.rfilename: file.size or 0 for file in found.siblings or () if file.rfilename.isprintable()}
        return found


class _Download:
    """The download of one model into the cache."""

    def __init__(self, reference: HubReference, tell: Tell) -> None:
        self._reference = reference
        self._tell = tell
        listing = _Listing()
        self._commit = listing.resolve_revision(reference.repository, revision=reference.revision).resolved
        _check_commit(self._commit, reference.repository)
        if self._commit == reference.revision:
            _look_up(listing, reference)
        self._sizes = listing.sizes

    def run(self, part: Part, *, tokenizer: bool, check: Check | None) -> HubFolder:
        """Fetch the requested parts. Raises, Effects: as `fetch`."""
        self._require("config.json")
        if tokenizer and part != "config":
            self._require("tokenizer.json")
        if part == "all" and check is not None and self._sizes is not None:
            check(None, _least_weights(self._sizes))
        with disable_progress_bars():  # bars for small files would hide that of the weights
            folder = self._get("config.json").parent
            for name in _CONFIG if part == "config" else (*_CONFIG, *_TEXT):
                if name != "config.json" and self._listed(name):
                    self._get(name)
        if part != "all":
            self._tell(f"model {self._reference}: commit {self._commit}, in {folder}")
            return HubFolder(folder, self._commit)
        read_architecture(folder)
        weights = self._weights(folder)
        if check is not None and self._sizes is not None:
            check(folder, sum(self._sizes[name] for name in weights))
        missing = [name for name in weights if not (folder / name).is_file()]
        self._announce(folder, missing)
        for name in weights:
            self._get(name)
        return HubFolder(folder, self._commit)

    def _require(self, name: str) -> None:
        if self._sizes is not None and name not in self._sizes:
            raise ModelError(f"{self._reference} has no {name}, which serving needs: choose another repository")

    def _listed(self, name: str) -> bool:
        """Whether the Hub lists a file of the model; without the Hub, whether the cache has it."""
        if self._sizes is not None:
            return name in self._sizes
        try:
            self._get(name)
        except LocalEntryNotFoundError:
            return False
        return True

    def _get(self, name: str) -> Path:
        """A file of the commit, from the cache or the Hub."""
        repository, offline = self._reference.repository, self._sizes is None
        path = Path(hf_hub_download(repository, name, revision=self._commit, local_files_only=offline))
        if path.parent.name != self._commit:
            raise ModelError(
                f"{self._reference} changed during the download: {name} is from commit "
                f"{path.parent.name[:12]} instead of {self._commit[:12]}; start again"
            )
        if self._sizes is not None and path.stat().st_size != self._sizes[name]:
            raise ModelError(
                f"{self._reference} changed during the download, or its copy is damaged: {path} has "
                f"{path.stat().st_size:,} bytes and {self._sizes[name]:,} are listed; remove "
                f"{path.resolve()} and start again"
            )
        return path

    def _weights(self, folder: Path) -> list[str]:
        """Names of the weight files: those of the index; without one, the single file, or all."""
        names = indexed_files(folder)
        if self._sizes is None:
            names = names or [path.name for path in sorted(folder.glob("*.safetensors"))]
            if not names:
                raise LocalEntryNotFoundError(f"no *.safetensors in {folder}")
            return names
        if names is None:
            found = [name for name in self._sizes if name.endswith(".safetensors") and "/" not in name]
            names = ["model.safetensors"] if "model.safetensors" in found else sorted(found)
        if not names:
            others = [name for name in self._sizes if name.endswith(_OTHER_WEIGHTS)]
            only = f", only {others[0]}" if others else ""
            raise ModelError(f"{self._reference} has no *.safetensors{only}: choose a repository or revision that has")
        lacking = [name for name in names if name not in self._sizes]
        if lacking:
            raise ModelError(f"{self._reference} has no {lacking[0]}, which its {INDEX} names: choose another revision")
        return names

    def _announce(self, folder: Path, missing: list[str]) -> None:
        """Report the download and its destination, unless the disk is too small."""
        if self._sizes is None or not missing:
            self._tell(f"model {self._reference}: commit {self._commit}, in {folder}")
            return
        size, room = sum(self._sizes[name] for name in missing), shutil.disk_usage(folder).free
        if size > room:
            raise ConfigError(
                f"{self._reference} takes {numbers.size(size)} more, and the disk of {folder} has {numbers.size(room)}"
                f" left: make room, or set HF_HOME to a folder on a larger one"
            )
        self._tell(
            f"model {self._reference}: commit {self._commit}; fetching {numbers.size(size)} of weights into {folder}"
        )


def _least_weights(sizes: Mapping[str, int]) -> int:
    """Lower bound of the weights' bytes, from files with known names; others may be duplicates of the same weights."""
    if "model.safetensors" in sizes:
        return sizes["model.safetensors"]
    return sum(size for name, size in sizes.items() if _SHARD.fullmatch(name))


def _check_commit(commit: str | None, repository: str) -> None:
    """Raises: ModelError unless a commit, which becomes a folder, is a digest."""
    if not is_digest(commit):
        raise ModelError(
            f"{repository} is at commit {ascii(commit)[:80]}, which is not a digest (40 to 64 hexadecimal digits) "
            "and could be a path: nothing was written; use the Hub itself, or another mirror (HF_ENDPOINT)"
        )


def _look_up(listing: _Listing, reference: HubReference) -> None:
    """List a model whose commit is known; without the Hub the cache may suffice."""
    try:
        listing.repo_info(reference.repository, revision=reference.revision)
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
    except ServingError:
        raise
    except Exception as error:  # of the transport: the cache is tried next, and reports what is missing
        logger.debug("%s cannot be listed: %s", reference, error)


@contextmanager
def _own_log() -> Iterator[None]:
    """Stop propagation of the library's warnings, which it prints itself, so that our log does not repeat them."""
    log = logging.getLogger("huggingface_hub")
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = before


# Errors from the Hugging Face Hub or on the way to it, each as one line with the remedy.

_LONGEST = 160


def hub_line(error: BaseException, reference: HubReference) -> str:
    """The line for an exception of `huggingface_hub`, of its transport, or of the disk."""
    model, hub, cache = reference.repository, constants.ENDPOINT, constants.HF_HUB_CACHE
    neither = f'there is no folder "{reference}", and'
    if isinstance(error, HfHubHTTPError):
        return _answered(error, reference, neither)
    if isinstance(error, RevisionResolutionError | LocalEntryNotFoundError | OfflineModeIsEnabled):
        if isinstance(error.__cause__, HfHubHTTPError):
            return _answered(error.__cause__, reference, neither)
        if constants.HF_HUB_OFFLINE:
            return (
                f"{neither} the cache {cache} has not all of {reference}, beyond which HF_HUB_OFFLINE forbids to look:"
                f" unset it, or give a folder"
            )
        cause = error.__cause__
        reason = f" ({_short(cause)})" if cause is not None and not isinstance(cause, OfflineModeIsEnabled) else ""
        return (
            f"{neither} {hub} cannot be reached{reason}, nor has the cache {cache} all of {reference}: give a folder,"
            f" or start once where there is a network"
        )
    if isinstance(error, HFValidationError):
        return f"{neither} {model} is no name of a model on the Hub: correct it, or give a folder"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk of {cache} is full: make room, or set HF_HOME to a folder on a larger one"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or cache} cannot be written ({error.strerror}): set HF_HOME to a folder that can be"
    return (
        f"{reference} was incomplete, or changed during the download ({_short(error)}): start again; complete files "
        f"are kept in {cache}"
    )


def _answered(error: HfHubHTTPError, reference: HubReference, neither: str) -> str:
    """The line for a response that refuses the request."""
    model, hub, status = reference.repository, constants.ENDPOINT, error.response.status_code
    if isinstance(error, GatedRepoError) or status == 403:
        return (
            f"{hub} does not give {model} without a login: accept its licence at {hub}/{model}, and set HF_TOKEN to a"
            f" token of that account"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{model} has no revision {reference.revision}: {hub}/{model}/tree/main lists branches and tags"
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        return (
            f"{neither} {hub} shows no model {model}: correct the name, or, if it is private, set HF_TOKEN to a token"
            f" that may read it"
        )
    return f"{hub} returned {status} for {model}: try again later, or give a folder"


def _short(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
