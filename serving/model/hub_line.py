"""Errors from the Hugging Face Hub or on the way to it, each as one line with the remedy."""

import errno

from huggingface_hub import constants
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

from serving.config.hub_reference import HubReference

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
