"""An architecture is data: families' modules read the keys of `config.json`, and no other module reads a model's
name.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from tests.architecture.source_tree import Source, read_sources

_PAGES = ("serving/model/families/", "serving/model/config_keys.py", "serving/tools/importing/")  # the last writes them
_KEYS = re.compile(
    r"(kv_lora_rank|q_lora_rank|qk_\w+_head_dim|v_head_dim|n_routed_experts|num_experts_per_tok|first_k_dense_replace|"
    r"num_nextn_predict_layers|num_key_value_heads|num_attention_heads|num_hidden_layers|intermediate_size|n_group)$"
)


def keys_elsewhere(sources: Sequence[Source]) -> list[str]:
    """Code outside the families' modules that uses a key's name, or decides by a model's name."""
    return [
        f"{source.path}:{line} {what}"
        for source in sources
        if not source.path.startswith(_PAGES)
        for line, what in sorted(_uses(source))
    ]


def _uses(source: Source) -> Iterator[tuple[int, str]]:
    yield from ((node.lineno, node.attr) for node in source.nodes(ast.Attribute) if _KEYS.match(node.attr))
    for node in source.nodes(ast.Constant):
        if isinstance(node.value, str) and _KEYS.match(node.value):
            yield node.lineno, node.value
    for node in source.nodes(ast.Compare) if "model_type" in source.text else ():
        if "model_type" in ast.unparse(node):
            yield node.lineno, "a comparison with model_type"


def test_keys_are_read_by_the_families_pages() -> None:
    assert keys_elsewhere(read_sources("serving")) == []


def test_the_checker_sees_keys_and_decisions() -> None:
    text = "def f(c):\n    if c.model_type == 'llama':\n        return c.kv_lora_rank + raw['num_hidden_layers']\n"
    assert [what for _, what in sorted(_uses(Source("a.py", "a", text)))] == [
        "a comparison with model_type", "kv_lora_rank", "num_hidden_layers",
    ]  # fmt: skip
