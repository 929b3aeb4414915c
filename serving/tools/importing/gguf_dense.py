"""Dense models with grouped attention: `llama` (Mistral's and SmolLM's files, too), `qwen2` and `qwen3`."""

from serving.errors import ModelError
from serving.tools.importing.description import Description, ModelFrame, Part, halves, net, norms, same
from serving.tools.importing.gguf_file import GgufFile
from serving.tools.importing.gguf_keys import FACTORS, ArchitectureKeys, rope_settings

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def describe_dense(file: GgufFile, architecture: str) -> Description:
    """Describe a `llama`, `qwen2` or `qwen3` model.

    Raises: ModelError if a key is missing, out of range, or has an unsupported meaning.
    """
    keys = ArchitectureKeys(file, architecture)
    frame = ModelFrame.of(file, keys)
    if keys.whole("expert_count", 0, least=0) or keys.whole("expert_used_count", 0, least=0):
        raise ModelError(f"it has experts, which are not read of {architecture!r}")
    kv_heads = keys.whole("attention.head_count_kv", frame.heads)
    width = keys.whole("attention.key_length", frame.hidden_size // frame.heads)
    if frame.heads % kv_heads or width % 2:
        raise ModelError(f"{frame.heads} query heads and {kv_heads} key heads of {width} elements do not fit together")
    same_width = {name: keys.whole(name, width) for name in ("attention.value_length", "rope.dimension_count")}
    for name, found in same_width.items():
        if found != width:
            raise ModelError(f"{architecture}.{name} is {found}; only {width}, a head's whole width, is read")
    context = keys.whole("context_length")
    if 0 < keys.whole("attention.sliding_window", 0, least=0) < context:
        raise ModelError(f"{architecture}.attention.sliding_window is not read: each token attends to all before it")
    biased = architecture == "llama" and "blk.0.attn_q.bias" in file.tensors
    config = {
        "architectures": [_CLASSES[architecture]],
        "model_type": architecture,
        **frame.config(keys),
        **rope_settings(file, keys, width),
        "num_key_value_heads": kv_heads,
    }
    if architecture == "qwen3" or width * frame.heads != frame.hidden_size:
        config["head_dim"] = width
    if architecture != "qwen2":
        config["attention_bias"] = biased
    config |= {"mlp_bias": False} if architecture == "llama" else {"use_sliding_window": False}
    keys.refuse_unread()
    layers = _Layers(architecture, frame, kv_heads, width, biased)
    parts = [*frame.ends(), *(part for layer in range(frame.layers) for part in layers.parts(layer))]
    return Description(config, parts, frozenset({FACTORS}))


class _Layers:
    """Parts of each layer."""

    def __init__(self, architecture: str, frame: ModelFrame, kv_heads: int, width: int, biased: bool) -> None:
        self._architecture = architecture
        self._frame = frame
        self._heads = {"q": frame.heads, "k": kv_heads, "v": kv_heads}
        self._width = width
        self._biased = biased

    def parts(self, number: int) -> list[Part]:
        block, layer, hidden = f"blk.{number}.", f"model.layers.{number}.", self._frame.hidden_size
        attention = f"{layer}self_attn."
        found = norms(block, layer, hidden) + net(block, f"{layer}mlp.", "", self._frame.feed_width, hidden)
        for letter, heads in self._heads.items():
            source, target, rows = f"{block}attn_{letter}", f"{attention}{letter}_proj", heads * self._width
            found.append(self._rows(letter, f"{source}.weight", (rows, hidden), f"{target}.weight"))
            if self._biased or self._architecture == "qwen2":
                found.append(self._rows(letter, f"{source}.bias", (rows,), f"{target}.bias"))
        columns = self._frame.heads * self._width
        found.append(same(f"{block}attn_output.weight", (hidden, columns), f"{attention}o_proj.weight"))
        if self._biased:
            found.append(same(f"{block}attn_output.bias", (hidden,), f"{attention}o_proj.bias"))
        if self._architecture == "qwen3":
            for letter in "qk":
                norm = f"{attention}{letter}_norm.weight"
                found.append(same(f"{block}attn_{letter}_norm.weight", (self._width,), norm))
        return found

    def _rows(self, letter: str, source: str, shape: tuple[int, ...], target: str) -> Part:
        if self._architecture == "llama" and letter in "qk":
            return halves(source, shape, target, self._heads[letter])
        return same(source, shape, target)
