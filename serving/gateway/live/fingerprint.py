"""The `system_fingerprint` of responses: systems with the same one respond equally to the same seeded request."""

import hashlib

from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.model.parcel import weights_digest
from serving.version import VERSION

_WHOLE = ("config.json", "generation_config.json")
_TEXT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PLACEHOLDER = "-placeholder-tokens"
"""Suffix of the fingerprint if NPUs are simulated, so that the text is meaningless."""


def system_fingerprint(config: ServeConfig) -> str:
    """`fp_` and ten hexadecimal digits: of model, weights, tokenizer, version, and keys that change results.

    Simulated NPUs compute no tokens, so theirs ends in `PLACEHOLDER`.

    For weights, the content counts (see `serving.model.parcel`), not file times: copies on several nodes are equal.

    Raises: ModelError if a file cannot be read.
    """
    model, engine, simulation = config.model, config.engine, config.simulation
    digest = hashlib.blake2b(digest_size=5)
    settings: tuple[object, ...] = (VERSION, model.version, model.dtype, model.device, engine.executor, engine.kv_dtype)
    if engine.executor == "simulated":
        settings += (simulation.output_tokens, simulation.drafts, simulation.acceptance, engine.max_model_len)
    digest.update(repr(settings).encode())
    try:
        for path in [*(model.path / name for name in _WHOLE), *(model.tokenizer_folder / name for name in _TEXT)]:
            if path.is_file():  # reading a pipe would never end
                digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
        digest.update(f"\0{weights_digest(model.path)}".encode())
    except OSError as error:
        raise ModelError(f"model folder {model.path} cannot be read ({error}): fetch it again") from error
    return f"fp_{digest.hexdigest()}{PLACEHOLDER if engine.executor == 'simulated' else ''}"
