"""A self-contained HTML document, and the policy sent with it: only its own script, no other origin.

Styled like the reports.
"""

import base64
import hashlib
import importlib.resources
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from loadgen.report.fragments import Html, join
from loadgen.report.page import facts, stylesheet

_THEME = (
    'document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";'
)
_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<script>$theme</script>
<style>$style</style>
</head>
<body>
<header class="bar"><div><nav aria-label="Pages">$navigation</nav></div></header>
<main>
$body
</main>
$script
</body>
</html>
""")


@dataclass(frozen=True, slots=True)
class PageDocument:
    """The document's bytes, with the value of its Content-Security-Policy."""

    content: bytes
    policy: str


def document(title: str, navigation: Sequence[Html], body: Sequence[Html], script: str = "") -> PageDocument:
    """Assemble a page.

    Args:
        navigation: links.
        script: JavaScript that runs after the body; it may send requests to this origin only.
    """
    style = f"{stylesheet()}\n{page_asset('pages.css')}"
    content = _DOCUMENT.substitute(
        title=escape(title),
        theme=_THEME,
        style=style,
        navigation=join(navigation, ""),
        body=join(body),
        script=f"<script>{script}</script>" if script else "",
    )
    scripts = " ".join(_hashed(one) for one in (_THEME, script) if one)
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {_hashed(style)}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return PageDocument(content.encode(), policy)


def page_asset(name: str) -> str:
    """An asset file of the pages."""
    return (importlib.resources.files("serving.gateway.api.pages") / "assets" / name).read_text(encoding="utf-8")


def link(to: str, text: str) -> Html:
    """A link. Addresses are relative, so that pages work behind a proxy that serves them under a path."""
    return Html(f'<a href="{escape(to)}">{escape(text)}</a>')


def _hashed(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


# The page at `/`: the served model, a box to chat with it, and links to the other pages.

_QUESTIONS = ("Tell me a story about a little dog and a ball.", "Write about a girl who finds an old key.")
_PLACEHOLDER_NOTE = "Placeholder text: the NPUs are simulated. Only the times are meaningful."


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Content of the page.

    Args:
        model: served name.
        context_tokens: prompt and response together.
        placeholder: whether NPUs are simulated, so that responses are meaningless.
        pools_page: address of the dashboard's page about pools; empty = unknown.
    """

    model: str
    version: str
    context_tokens: int
    placeholder: bool = False
    pools_page: str = ""


def start_page(start_facts: StartFacts, url: str) -> PageDocument:
    """The page.

    Args:
        url: this server's URL in the browser.
    """
    links = [
        link("requests", "Requests"),
        link("docs", "API"),
        link("openapi.json", "openapi.json"),
        link("metrics", "Metrics"),
    ]
    if start_facts.pools_page:
        links.append(Html(f'<a id="pools" href="{escape(start_facts.pools_page)}">Pools</a>'))
    body = Template(page_asset("start.html")).substitute(
        model=escape(start_facts.model),
        facts=facts(
            (("CloudMatrix-Infer", start_facts.version), ("context", f"{start_facts.context_tokens:,} tokens"))
        ),
        note=f'<ul class="notes"><li>{_PLACEHOLDER_NOTE}</li></ul>' if start_facts.placeholder else "",
        questions="".join(f'<button type="button" class="question">{escape(one)}</button>' for one in _QUESTIONS),
        command=escape(_command(start_facts.model, url)),
    )
    script = "\n".join(page_asset(name) for name in ("marked.umd.js", "purify.min.js", "start.js"))
    return document(f"{start_facts.model} – CloudMatrix-Infer", links, [Html(body)], script)


def _command(model: str, url: str) -> str:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": _QUESTIONS[0]}]}
    sent = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {shlex.quote(url)}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d {sent}"
