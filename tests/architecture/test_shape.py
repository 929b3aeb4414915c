"""Small files, small functions, no module called utils, no environment variables of our own."""

import ast
from collections.abc import Iterator, Sequence

from tests.architecture.source_tree import Source, read_sources

MAX_FILE_LINES = 400
STATE_MACHINES = {"serving/gateway/core/gateway.py": 500, "serving/instance/core/engine.py": 500}
"""Files that are one state machine each, and may be longer: to cut them would only hide their state."""
MAX_FUNCTION_LINES = 60
MAX_PUBLIC_METHODS = 20
STILL_WIDE = frozenset({"MemoryManager"})
"""Classes with more public methods. The list only gets shorter."""
DRAWERS = ("util", "helper", "misc", "common")
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "putenv"})

MAY_TOUCH_THE_ENVIRONMENT = (
    "serving/cli/key_environment.py",
    "serving/cluster/host_environment.py",
    "serving/cluster/session.py",
    "serving/launch/agent_keeper.py",
    "serving/launch/detached.py",
    "serving/launch/worker_seed.py",
    "loadgen/server_address.py",
    "serving/model/linear.py",
    "serving/model/native/build.py",
    "serving/sockets/tls.py",
    "serving/tools/importing/smollm2.py",
)
"""Ray, OpenMP and oneDNN read their own variables, every client looks for OPENAI_API_KEY, every build tool uses CXX and
XDG_CACHE_HOME, and whoever starts a service sets NOTIFY_SOCKET. Of ours there is one, which only containers need:
CLOUDMATRIX_API_KEYS.
"""

PACKAGES = read_sources("hardware", "serving", "loadgen")
PRODUCT = [*PACKAGES, *read_sources("deploy")]
EVERYTHING = [*PRODUCT, *read_sources("tests", "docs", "examples")]


def long_files(sources: Sequence[Source]) -> list[str]:
    """Files over the limit."""
    sizes = {source.path: len(source.text.splitlines()) for source in sources}
    return [f"{path}: {size} lines" for path, size in sizes.items() if size > STATE_MACHINES.get(path, MAX_FILE_LINES)]


def long_functions(sources: Sequence[Source]) -> list[str]:
    """Functions over the limit, decorators not counted."""
    return [
        f"{source.path}:{node.lineno} {node.name}: {size} lines"
        for source in sources
        for node in source.statements
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def wide_classes(sources: Sequence[Source]) -> dict[str, str]:
    """Classes over the limit of public methods, properties included, with their place and number."""
    found = {}
    for source in sources:
        for node in source.statements:
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                names = {method.name for method in methods if not method.name.startswith("_")}
                if len(names) > MAX_PUBLIC_METHODS:
                    found[node.name] = f"{source.path}:{node.lineno} {len(names)} public methods"
    return found


def drawers(sources: Sequence[Source]) -> list[str]:
    """Modules and packages with a meaningless name."""
    return [s.path for s in sources if any(word in part for part in s.module.split(".") for word in DRAWERS)]


def environment_uses(sources: Sequence[Source]) -> list[str]:
    """Places that read or write environment variables."""
    return [f"{source.path}:{line}" for source in sources for line in sorted(set(_environment_lines(source)))]


def _environment_lines(source: Source) -> Iterator[int]:
    yield from (node.lineno for node in source.nodes(ast.Attribute) if node.attr in _ENVIRONMENT)
    for node in source.nodes(ast.ImportFrom):
        if node.module == "os" and _ENVIRONMENT & {alias.name for alias in node.names}:
            yield node.lineno


def busy_init_files(sources: Sequence[Source]) -> list[str]:
    """`__init__.py` files that do more than re-export: anything but a docstring, imports and `__all__`."""
    return [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.path.endswith("__init__.py")
        for node in source.tree.body
        if not _re_exports(node)
    ]


def _re_exports(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Import | ast.ImportFrom)


def repeated_class_names(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Class names that are used in more than one file, so that a search for one finds the other; private ones may
    be.
    """
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.statements:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.path)
    return {name: paths for name, paths in places.items() if len(set(paths)) > 1}


def test_files_are_small() -> None:
    assert long_files(EVERYTHING) == []


def test_functions_are_small() -> None:
    assert long_functions(EVERYTHING) == []


def test_classes_are_narrow() -> None:
    wide = wide_classes(PRODUCT)
    assert {name: where for name, where in wide.items() if name not in STILL_WIDE} == {}
    assert sorted(STILL_WIDE - wide.keys()) == [], "narrow by now: leave them out of the list"


def test_names_say_what_is_inside() -> None:
    assert drawers(EVERYTHING) == []


def test_no_environment_variables_of_our_own() -> None:
    uses = environment_uses(PRODUCT)
    assert [use for use in uses if use.split(":")[0] not in MAY_TOUCH_THE_ENVIRONMENT] == []


def test_init_files_only_re_export() -> None:
    assert busy_init_files(PACKAGES) == []


def test_class_names_are_unique() -> None:
    assert repeated_class_names(PACKAGES) == {}


def sample(text: str, path: str = "pkg/mod.py") -> list[Source]:
    """One source with this text."""
    return [Source(path, path.removesuffix(".py").replace("/", "."), text)]


def test_the_checker_sees_a_long_file_and_a_long_function() -> None:
    assert long_files(sample("x = 1\n" * 400)) == []
    assert long_files(sample("x = 1\n" * 401)) == ["pkg/mod.py: 401 lines"]
    assert long_functions(sample("def f():\n" + "    x = 1\n" * 59)) == []
    body = "    async def f(self):\n" + "        x = 1\n" * 60
    assert long_functions(sample("class C:\n" + body)) == ["pkg/mod.py:2 f: 61 lines"]


def test_the_checker_sees_a_class_name_twice() -> None:
    sources = [
        *sample("class A: ...\nclass _B: ...\n", "pkg/a.py"),
        *sample("class A: ...\nclass _B: ...\n", "pkg/b.py"),
    ]
    assert repeated_class_names(sources) == {"A": ["pkg/a.py", "pkg/b.py"]}


def test_the_checker_sees_a_wide_class() -> None:
    methods = [f"    def m{number}(self): ..." for number in range(20)]
    narrow = "\n".join(["class C:", *methods, "    def _own(self): ...", "    @m0.setter", "    def m0(self): ..."])
    assert wide_classes(sample(narrow)) == {}
    assert wide_classes(sample(f"{narrow}\n    async def more(self): ...")) == {"C": "pkg/mod.py:1 21 public methods"}


def test_the_checker_sees_a_drawer() -> None:
    assert drawers(sample("", "pkg/string_utils.py")) == ["pkg/string_utils.py"]
    assert drawers(sample("", "pkg/helpers/a.py")) == ["pkg/helpers/a.py"]
    assert drawers(sample("", "pkg/text.py")) == []


def test_the_checker_sees_the_environment_however_it_is_reached() -> None:
    text = 'import os\nfrom os import getenv\nA = os.environ["A"]\nB = os.getenv("B")\nC = os.path.sep\n'
    assert environment_uses(sample(text)) == ["pkg/mod.py:2", "pkg/mod.py:3", "pkg/mod.py:4"]


def test_the_checker_sees_work_in_an_init_file() -> None:
    text = '"""Doc."""\nfrom pkg.a import b\n__all__ = ["b"]\nCACHE = {}\n'
    assert busy_init_files(sample(text, "pkg/__init__.py")) == ["pkg/__init__.py:4"]
    assert busy_init_files(sample(text, "pkg/mod.py")) == []
