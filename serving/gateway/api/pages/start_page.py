"""The page at `/`: the served model, a box to chat with it, and links to the other pages."""

import json
import shlex
from dataclasses import dataclass
from html import escape
from string import Template

from loadgen.report.fragments import Html
from loadgen.report.page import facts
from serving.gateway.api.pages.document import PageDocument, document, link, page_asset

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


def start_page(told: StartFacts, url: str) -> PageDocument:
    """The page.

    Args:
        url: this server's URL in the browser.
    """
    links = [link("docs", "API"), link("openapi.json", "openapi.json"), link("metrics", "Metrics")]
    if told.pools_page:
        links.append(Html(f'<a id="pools" href="{escape(told.pools_page)}">Pools</a>'))
    body = Template(page_asset("start.html")).substitute(
        model=escape(told.model),
        facts=facts((("CloudMatrix-Infer", told.version), ("context", f"{told.context_tokens:,} tokens"))),
        note=f'<ul class="notes"><li>{_PLACEHOLDER_NOTE}</li></ul>' if told.placeholder else "",
        questions="".join(f'<button type="button" class="question">{escape(one)}</button>' for one in _QUESTIONS),
        command=escape(_command(told.model, url)),
    )
    return document(f"{told.model} – CloudMatrix-Infer", links, [Html(body)], page_asset("start.js"))


def _command(model: str, url: str) -> str:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": _QUESTIONS[0]}]}
    sent = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {shlex.quote(url)}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d {sent}"
