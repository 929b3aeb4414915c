"""MkDocs hook: the site mirrors the repository, so that links between pages need no rewriting.

Pages are the Markdown files at the top level, those of docs/, every README and the runbook, with the pictures and files
that they link to. A page that would load a script, a style or a font from another host fails the build.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "Serving": "serving",
    "Hardware": "hardware",
    "Load generator": "loadgen",
    "Run it": "deploy",
    "Examples": "examples",
    "Tests and figures": "tests",
}
_LINK = re.compile(r"\]\(([^)\s#]+)")
_TUTORIAL = re.compile(r"\((docs/tutorials/[\w-]+\.md)\)")
"""In the order in which the README names them."""
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MERMAID = re.compile(r"^```mermaid\n.*?^```", re.MULTILINE | re.DOTALL)
_LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\"\s>]+")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Create the navigation from the existing pages. Effects: sets `nav` and the files that `mkdocs serve` watches."""
    project = [name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md") if (ROOT / name).exists()]
    parts = {title: _readmes(folder) for title, folder in SECTIONS.items()}
    config.nav = [
        {"Start": "README.md"},
        {"Tutorials": list(dict.fromkeys(_TUTORIAL.findall((ROOT / "README.md").read_text(encoding="utf-8"))))},
        {"Guides": _names(sorted((ROOT / "docs/guides").glob("*.md")))},
        *_names(sorted((ROOT / "docs").glob("*.md"))),
        {"References": _names(sorted((ROOT / "docs/reference").glob("*.md")))},
        *({title: readmes} for title, readmes in parts.items() if readmes),
        {"Project": project},
    ]
    config.watch = [str(path) for path in _pages()]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add pages, and the files of the repository that they link to. Effects: changes `files`."""
    pages = list(_pages())
    linked = {target for page in pages for target in _linked_files(page)}
    for path in (*pages, *sorted(linked - set(pages))):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep Mermaid diagrams as text: drawing them would take a script from another host."""
    return _MERMAID.sub(lambda found: _folded(found.group()), markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Check a finished page. Raises: PluginError if it would load a resource from another host."""
    loaded = _LOADED.search(output)
    if loaded is not None and 'rel="canonical"' not in loaded.group():
        raise PluginError(f"{page.file.src_uri} loads from another host: {loaded.group()}")
    return output


def _pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for folder in SECTIONS.values():
        yield from _told(folder)


def _readmes(folder: str) -> list[str]:
    return _names(_told(folder))


def _told(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.md") if path.name in ("README.md", "RUNBOOK.md"))


def _names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def _linked_files(page: Path) -> Iterator[Path]:
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file() and path.is_relative_to(ROOT):
            yield path


def _folded(fence: str) -> str:
    indented = "\n".join(f"    {line}" for line in fence.replace("```mermaid", "```text", 1).splitlines())
    return f'??? note "Diagram, as Mermaid text"\n\n{indented}\n'
