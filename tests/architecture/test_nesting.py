"""Every reader of JSON or TOML bounds its depth, which otherwise depends on the version of Python."""

import ast
from collections.abc import Sequence

from tests.architecture.source_tree import Source, read_sources

PARSERS = frozenset(
    {"json.load", "json.loads", "json.JSONDecoder", "msgspec.json.decode", "msgspec.json.Decoder", "tomllib.loads"}
)
_LAST = frozenset(name.rpartition(".")[2] for name in PARSERS)
BOUNDS = ("hardware.nesting", "loadgen.json_text")
NEED_NONE = {
    "serving.gateway.api.tokenizer": "reads what `tokenizers` wrote a moment before",
    "serving.kvpool.live.redis_store": "its records are typed, and written by the control service alone",
    "serving.gateway.api.batches.files": "a gateway wrote it, in a typed form",
    "serving.gateway.api.batches.shelf": "a gateway wrote it, in a typed form",
    "serving.gateway.live.redis_work": "its items are typed, and written by gateways alone",
    "serving.gateway.api.responses.background": "a gateway wrote it, of bodies that were read within a bound",
    "serving.gateway.api.responses.kept": "a gateway wrote it, of bodies that were read within a bound",
    "serving.cluster.identity": "its values are typed, and written by the system alone",
    "serving.cluster.model_parcels": "its values are typed, and written by the system alone",
    "serving.cluster.node_numbers": "its values are typed, and written by the system alone",
    "serving.launch.rollout": "its record is typed, and written by the system alone",
    "serving.faults.injected": "its rows are typed, and written by this user alone",
}


def unbounded(sources: Sequence[Source]) -> list[str]:
    """Uses of a parser in modules that do not import the bound."""
    return [
        f"{source.path}:{node.lineno} {ast.unparse(node)}"
        for source in sources
        if source.module not in (*BOUNDS, *NEED_NONE)
        and not any(name.startswith(bound) for name in source.imports for bound in BOUNDS)
        for node in source.nodes(ast.Attribute)
        if node.attr in _LAST and ast.unparse(node) in PARSERS
    ]


def test_every_reader_bounds_the_depth() -> None:
    sources = read_sources("hardware", "serving", "loadgen")
    assert unbounded(sources) == []
    assert NEED_NONE.keys() <= {source.module for source in sources}


def test_the_checker_sees_a_reader_without_a_bound() -> None:
    bad = Source("a.py", "a", "import json\n\ndef read(text: str) -> object:\n    return json.loads(text)\n")
    good = Source("b.py", "b", "import json\nfrom hardware.nesting import check_depth\nread = json.loads\n")
    assert unbounded([bad, good]) == ["a.py:4 json.loads"]
