"""The page at `/requests`: the latest requests as a table, and the time line of one of them."""

import json
from string import Template

from loadgen.report.fragments import Html
from serving.gateway.api.pages.document import PageDocument, document, link, page_asset
from serving.gateway.core import timeline as t

GROUPS: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (
    ("at the gateway", "grey", 1.0, (t.TOKENIZING, t.WAITING, t.ROUTING, t.WRITING, t.OTHER_CHOICES)),
    ("waiting at an instance", "orange", 1.0, (t.INSTANCE_QUEUE, t.STEP_WAIT, t.OTHER_STEPS, t.BETWEEN)),
    ("KV moved", "green", 1.0, (t.POOL_GET, t.CHECKSUMS, t.HANDOFF)),
    ("prefill", "prefill", 1.0, (t.PREFILL,)),
    ("decode", "decode", 1.0, (t.DECODE,)),
    ("network and frames", "grey", 0.5, (t.NETWORK, t.NO_NEWS)),
    ("resumed", "red", 1.0, (t.RESUMING,)),
)
"""Kinds of parts of a time line with a common colour: name, colour, opacity."""


def requests_page(pools_page: str = "") -> PageDocument:
    """The page; its data come from `/v1/requests`.

    Its address may set the filters: `from` and `to` [s since 1970], `find` (words), `outcome`.

    Args:
        pools_page: see `StartFacts`.
    """
    groups = [{"name": name, "color": color, "alpha": alpha, "kinds": kinds} for name, color, alpha, kinds in GROUPS]
    body = Template(page_asset("requests.html")).substitute(most=f"{t.MOST_ROWS:,}")
    script = page_asset("requests.js").replace("/*groups*/[]", json.dumps(groups))
    links = [link("./", "Chat"), link("sessions", "Sessions"), link("docs", "API"), link("metrics", "Metrics")]
    links += [link(pools_page, "Pools")] if pools_page else []
    return document("Requests – CloudMatrix-Infer", links, [Html(body)], script)
