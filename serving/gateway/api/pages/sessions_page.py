"""The page at `/sessions`: the sessions whose prompts the KV-cache pool keeps."""

from loadgen.report.fragments import Html
from serving.gateway.api.pages.document import PageDocument, document, link, page_asset


def sessions_page(pools_page: str = "") -> PageDocument:
    """The page; its data come from `/pool/sessions`. Its address may name a `namespace`.

    Args:
        pools_page: see `StartFacts`.
    """
    links = [link("./", "Chat"), link("requests", "Requests"), link("docs", "API")]
    links += [link(pools_page, "Pools")] if pools_page else []
    return document(
        "Sessions – CloudMatrix-Infer", links, [Html(page_asset("sessions.html"))], page_asset("sessions.js")
    )
