"""The import rules as functions over sources: each returns its violations, one line each."""

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from tests.architecture.source_tree import Source, known_module, top_module, within


def layer_of(module: str, layers: Sequence[str]) -> int | None:
    """Index of a module's layer; a module with a layer of its own does not belong to its package's layer."""
    found = [index for index, layer in enumerate(layers) if within(module, layer)]
    return max(found, key=lambda index: len(layers[index]), default=None)


def upward_imports(sources: Sequence[Source], layers: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Imports that go up the list of layers, and modules without a layer.

    Args:
        layers: packages from the lowest to the highest; a module may import its own layer and those before it.
        roots: packages that only hold others; their `__init__.py` belongs to no layer and must import nothing.
    """
    found = []
    targets_of = _targets_by_name(tuple(sources))
    for source in sources:
        own = layer_of(source.module, layers)
        targets = targets_of[source.module]
        if own is None:
            if source.module not in roots or any(targets):
                found.append(f"{source.path}: has no layer; give it a place in LAYERS")
            continue
        for name, target in zip(source.imports, targets, strict=True):
            theirs = layer_of(target, layers) if target else None
            if theirs is not None and theirs > own:
                found.append(f"{source.path}: imports {name}, which is above {layers[own]}")
    return found


def banned_imports(
    sources: Sequence[Source], package: str, banned: frozenset[str], allowed: frozenset[str] = frozenset()
) -> list[str]:
    """Paths by which modules of a package reach a banned module, directly or through other modules of ours.

    Args:
        banned: dotted names, third-party or our own; a name bans all modules below it.
        allowed: dotted names below a banned one that may be reached; their own imports are checked, too.
    """
    names, targets = {source.module: source.imports for source in sources}, _targets(sources)
    bad: dict[str, str] = {}  # the first banned name that a module imports itself
    for module, imported in names.items():
        for name in imported:
            if _lies_in(name, banned) and not _lies_in(name, allowed):
                bad.setdefault(module, name)
    found = []
    for source in sources if bad else ():
        if within(source.module, package) and (chain := _chain_to(source.module, bad, targets)):
            found.append(f"{source.path}: {' -> '.join(chain)}")
    return found


def _lies_in(name: str, packages: frozenset[str]) -> bool:
    """Whether a dotted name is one of these, or below one."""
    while name and name not in packages:
        name = name.rpartition(".")[0]
    return bool(name)


def _chain_to(start: str, bad: Mapping[str, str], targets: Mapping[str, Sequence[str]]) -> list[str]:
    """Shortest chain of imports from a module to a banned name; empty if there is none."""
    queue, before = [start], {start: ""}
    for module in queue:  # grows while it is read: breadth first
        if module in bad:
            chain = [bad[module]]
            while module:
                chain.insert(0, module)
                module = before[module]
            return chain
        for target in targets[module]:
            if target not in before:
                before[target] = module
                queue.append(target)
    return []


def imports_across(sources: Sequence[Source], parties: Sequence[str]) -> dict[str, set[str]]:
    """Modules of other parties that each module of a party imports, by its path; only those that do."""
    found: dict[str, set[str]] = {}
    targets = _targets(sources)
    for source in sources:
        own = next((party for party in parties if within(source.module, party)), None)
        for target in targets[source.module] if own is not None else ():
            if any(within(target, party) for party in parties if party != own):
                found.setdefault(source.path, set()).add(target)
    return found


def importers_outside(sources: Sequence[Source], library: str, allowed: Sequence[str]) -> list[str]:
    """Modules outside the allowed packages that import a library."""
    return [
        f"{source.path}: imports {library}"
        for source in sources
        if any(within(name, library) for name in source.imports)
        and not any(within(source.module, package) for package in allowed)
    ]


def imports_of_tests(sources: Sequence[Source]) -> list[str]:
    """Imports of modules that hold tests: code shared by two of them belongs in a separate module."""
    return [
        f"{source.path}: imports {name}"
        for source in sources
        for name in source.imports
        if within(name, "tests") and any(part.startswith("test_") for part in name.split("."))
    ]


def foreign_imports(sources: Sequence[Source], package: str, allowed: frozenset[str]) -> list[str]:
    """Imports of a package that are neither the standard library, nor itself, nor allowed by name."""
    fine = allowed | sys.stdlib_module_names
    return [
        f"{source.path}: imports {name}"
        for source in sources
        if within(source.module, package)
        for name in source.imports
        if top_module(name) not in fine and not within(name, package)
    ]


def reached_outside(sources: Sequence[Source], package: str, whole: str, allowed: Sequence[str]) -> list[str]:
    """Modules of `whole` that a package reaches, itself or through others, although it must not."""
    targets, found = _targets(sources), []
    for source in sources:
        if not within(source.module, package):
            continue
        reached, queue = {source.module}, [source.module]
        for name in queue:  # grows while it is read
            new = set(targets[name]) - reached
            reached |= new
            queue += new
        found += [
            f"{source.path}: reaches {name}"
            for name in sorted(reached)
            if within(name, whole) and name != whole and not any(within(name, fine) for fine in allowed)
        ]
    return found


def unreached(sources: Sequence[Source], entries: Collection[str], by_name: Mapping[str, Collection[str]]) -> list[str]:
    """Modules that no entry point imports, directly or through others. An import of a module imports its packages.

    Args:
        entries: modules that are started; names that are not among the sources are ignored.
        by_name: modules that a module starts or imports by name, without an import statement.
    """
    modules = {source.module: source for source in sources}
    reached, queue = set[str](), [name for name in entries if name in modules]
    while queue:
        name = queue.pop()
        if name in modules and name not in reached:
            reached.add(name)
            queue += [name.rpartition(".")[0], *_known(modules[name], modules), *by_name.get(name, ())]
    return sorted(modules.keys() - reached)


def _known(source: Source, modules: Mapping[str, Source]) -> list[str]:
    return [found for name in source.imports if (found := known_module(name, modules))]


def import_circles(sources: Sequence[Source]) -> list[str]:
    """Circles of imports, those inside functions included, each as the shortest way from a module back to itself."""
    paths = {source.module: source.path for source in sources}
    return _circles(paths, _targets(sources))


def folder_circles(sources: Sequence[Source]) -> list[str]:
    """Circles of imports among folders; a folder and its parents do not form a circle, since parents have shared
    leaves.
    """
    folders = {source.module: source.path.rpartition("/")[0] for source in sources}
    targets: dict[str, list[str]] = {}
    for module, found in _targets(sources).items():
        own = folders[module]
        targets.setdefault(own, []).extend(
            folder
            for folder in map(folders.__getitem__, found)
            if not f"{own}/".startswith(f"{folder}/") and not folder.startswith(f"{own}/")
        )
    return _circles({folder: folder for folder in targets}, targets)


@cache  # most rules need them
def _targets_by_name(sources: tuple[Source, ...]) -> dict[str, list[str | None]]:
    """For each module, and each name that it imports: the module of ours that it is, or None."""
    modules = {source.module: source for source in sources}
    return {source.module: [known_module(name, modules) for name in source.imports] for source in sources}


def _targets(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Modules of ours that each module imports."""
    named = _targets_by_name(tuple(sources))
    return {module: [one for one in dict.fromkeys(targets) if one] for module, targets in named.items()}


def _circles(paths: Mapping[str, str], targets: Mapping[str, Sequence[str]]) -> list[str]:
    circles: dict[frozenset[str], str] = {}
    left = set(targets)
    while ends := {name for name in left if not left & (set(targets[name]) - {name})}:  # they lead to no circle
        left -= ends
    for name in (name for name in paths if name in left):
        if way := _way_back(name, targets):
            circles.setdefault(frozenset(way), f"{paths[name]}: {' -> '.join(way)}")
    return list(circles.values())


def _way_back(start: str, targets: Mapping[str, Sequence[str]]) -> list[str]:
    queue, seen = [[start]], {start}
    for way in queue:  # grows while it is read: breadth first
        for target in targets[way[-1]]:
            if target == start and way != [start]:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                queue.append([*way, target])
    return []
