"""Reads a `config.json` key by key and tracks unread keys. Imports no torch.

An unknown key that changes the model's computation must not be ignored. So a family's module reads all keys that it
supports, and every remaining key must be irrelevant to computation (`INERT`) or disabled.
"""

import math
from collections.abc import Mapping, Sequence

from serving.errors import ModelError

INERT = frozenset(
    """
    architectures auto_map transformers_version torch_dtype dtype model_type name_or_path use_cache initializer_range
    embedding_initializer_range pretraining_tp attention_dropout pad_token_id bos_token_id eos_token_id sep_token_id
    unk_token_id decoder_start_token_id aux_loss_alpha seq_aux router_aux_loss_coef output_router_logits ep_size
    router_jitter_noise hidden_dropout resid_pdrop embd_pdrop attn_pdrop attention_probs_dropout_prob id2label label2id
    return_dict output_attentions output_hidden_states problem_type chunk_size_feed_forward is_encoder_decoder
    gradient_checkpointing max_length temperature top_p top_k do_sample repetition_penalty unsloth_version
    unsloth_fixed task_specific_params base_model_tp_plan base_model_ep_plan base_model_pp_plan moe_router_dtype
    transformers.js_config is_llama_config tokenizer_class keys_to_ignore_at_inference attn_implementation use_bfloat16
    torchscript is_decoder num_beams num_beam_groups num_return_sequences length_penalty diversity_penalty typical_p
    min_length no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping
    """.split()
)
"""Keys that do not affect a served model's output: for training, for Hugging Face's own library, or read by other
modules.
"""

_OFF: tuple[object, ...] = (None, False, {}, [])
_MOST_LAYERS = 4096
"""More layers than any model has; a list of this many still fits in memory."""


class ConfigKeys:
    """The keys of one `config.json`.

    Args:
        raw: its top level.
    """

    def __init__(self, raw: Mapping[str, object]) -> None:
        self.raw = raw
        self._read: set[str] = set()

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A count; absent and null mean `default`. Raises: KeyError, TypeError or ModelError."""
        self._read.add(key)
        return whole(self.raw, key, default, least=least)

    def number(self, key: str, default: float, *, least: float = -math.inf) -> float:
        """A finite number of at least `least`; absent and null mean `default`. Raises: TypeError, ModelError."""
        self._read.add(key)
        return number(self.raw, key, default, least=least)

    def optional(self, key: str, *, least: int = 1) -> int | None:
        """A count; None if absent or null. Raises: TypeError, ModelError."""
        self._read.add(key)
        return None if self.raw.get(key) is None else whole(self.raw, key, least=least)

    def flag(self, key: str, default: bool) -> bool:
        """A switch; absent and null mean `default`. Raises: TypeError if it is not a boolean."""
        self._read.add(key)
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TypeError(f"{key} = {str(value)[:40]}")
        return value

    def layers(self, key: str = "num_hidden_layers", default: int | None = None, *, least: int = 1) -> int:
        """A number of layers. Raises: as `whole`, also ModelError beyond `_MOST_LAYERS`."""
        count = self.whole(key, default, least=least)
        if count > _MOST_LAYERS:
            raise ModelError(f"{key} = {count} exceeds the {_MOST_LAYERS} layers that are supported")
        return count

    def names(self, key: str, count: int, known: Sequence[str]) -> list[str] | None:
        """One of `known` for each of `count` layers (further ones are ignored); None if the key is absent or null.

        Raises: TypeError if it is not a list; ModelError if it is too short or has another value.
        """
        self._read.add(key)
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise TypeError(f"{key} = {str(value)[:40]}")
        if len(value) < count:
            raise ModelError(f"{key} has {len(value)} entries for {count} layers")
        for one in value[:count]:
            if one not in known:
                supported = " and ".join(known)
                raise ModelError(f"{key} names {str(one)[:40]!r}, which is not supported; only {supported} are")
        return value[:count]

    def whole_list(self, key: str) -> list[int]:
        """Nonnegative integers; absent and null mean none. Raises: TypeError if it is not such a list."""
        self._read.add(key)
        value = self.raw.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
            raise TypeError(f"{key} = {str(value)[:40]}")
        return value

    def among(self, key: str, *allowed: object) -> None:
        """Require that a key, if present, has one of the supported values.

        Raises: ModelError naming the key, its value and the supported value.
        """
        self._read.add(key)
        value = self.raw.get(key)
        if value is not None and value not in allowed:
            raise ModelError(f"{key} = {repr(value)[:40]} is not supported; only {allowed[0]!r} is")

    def known(self, *keys: str) -> None:
        """Mark keys as read that duplicate others or are read by other modules."""
        self._read.update(keys)

    def refuse_unread(self) -> None:
        """Require that every key was read, is inert, or is disabled.

        Raises: ModelError naming those that may change the model's computation.
        """
        left = [
            key
            for key, value in self.raw.items()
            if key not in self._read and key not in INERT and not key.startswith("_") and value not in _OFF
        ]
        if left:
            named = ", ".join(f"{key[:60]} = {str(self.raw[key])[:40]}" for key in sorted(left)[:5])
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise ModelError(
                f"{named}{more}: not supported for this architecture, and may change what it computes; "
                "a key without effect can be removed"
            )


# Numbers of a `config.json`, within the ranges with which a model can be built. Imports no torch.

_LARGEST = 2**31 - 1
"""Largest count in the native library."""
_HUGE = 1e300
"""Beyond it a JSON integer may not even fit a float."""


def number(
    raw: Mapping[str, object], key: str, default: float | None = None, *, least: float = -math.inf, above: bool = False
) -> float:
    """A finite number; absent and null mean `default`.

    Args:
        least: smallest allowed value; with `above`, the value itself is excluded.
    Raises: KeyError without a value or default; TypeError if it is not a number; ModelError if it is out of range.
    """
    value = raw.get(key)
    if value is None:
        if default is None:
            raise KeyError(key)
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} = {value!r}")
    if not -_HUGE <= value <= _HUGE or value < least or (above and value == least):
        limit = "finite" if least == -math.inf else f"{'above' if above else 'at least'} {least:g}, and finite"
        raise ModelError(f"{key} = {value} must be {limit}")
    return value


def whole(raw: Mapping[str, object], key: str, default: int | None = None, *, least: int = 1) -> int:
    """A count; absent and null mean `default`.

    Raises: as `number`.
    """
    value = number(raw, key, default)
    if not least <= value <= _LARGEST or value != int(value):
        raise ModelError(f"{key} = {value} must be a whole number from {least} to {_LARGEST}")
    return int(value)
