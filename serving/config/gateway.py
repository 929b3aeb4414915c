"""Gateway settings: listen address, access control and capacity."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

HttpServer = Literal["uvicorn", "serve"]
Routing = Literal["load", "locality", "round_robin", "power_of_two"]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """`[gateway]`. Listens on loopback by default; configure API keys before opening it to other hosts."""

    host: str = key("address to listen on; `0.0.0.0` = every interface", default="127.0.0.1", low=1)
    port: int = key("TCP port", default=8000, low=1, high=65535)
    replicas: int = key("ingress replicas", default=1, low=1, high=64)
    server: HttpServer = key(
        "who carries the bytes: `uvicorn` inside the ingress replica, or `serve` = Ray Serve's HTTP proxy",
        default="uvicorn",
    )
    api_keys: tuple[str, ...] = key("keys accepted as `Authorization: Bearer`; none = open", default=(), secret=True)
    api_key_file: str = key(
        "file with more of them, one a line, relative to this file; best kept at mode 600", default=""
    )
    max_body_bytes: int = key("largest request body [bytes]; beyond it 413", default=4 * 1024 * 1024, low=1024)
    max_head_bytes: int = key(
        "largest request line and headers together [bytes]; beyond it 431", default=64 * 1024, low=1024, high=256 * 1024
    )
    head_timeout_s: float = key(
        "until request line and headers must be there [s]; then 408", default=10.0, low=0.1, high=3600
    )
    body_timeout_s: float = key(
        "without a byte of a body that is not complete [s]; then 408", default=60.0, low=0.1, high=3600
    )
    max_connections: int = key(
        "connections at once, per replica; beyond it 503, but for some that are kept for `/health`, `/ready` and "
        "`/metrics`; 0 = seven eighths of the files that a process may open (`ulimit -n`)",
        default=0,
        low=0,
        high=65_536,
    )
    address_share: float = key(
        "share of them that one client's address may have; 1 = all, for a proxy in front", default=0.5, low=0.01, high=1
    )
    request_timeout_s: float = key("a request's whole life [s]; beyond it 408", default=600.0, low=0.1, high=86_400)
    max_running_sequences: int = key(
        "sequences in the pools at once, per replica; further requests wait; with several API keys no more than the "
        "instances can run now, and one key leaves a tenth to the others",
        default=256,
        low=1,
    )
    max_queued_requests: int = key(
        "requests that may wait, per replica; beyond it 429; with several API keys so many more as the instances run "
        "fewer than `max_running_sequences`",
        default=512,
        low=0,
    )
    max_queued_tokens: int = key(
        "prompt tokens that may wait, per replica; beyond it 429; a request needs at most half of it free, "
        "so one may exceed it, and none is too large to get in",
        default=1_000_000,
        low=1,
    )
    max_n: int = key("answers to one prompt (`n`); beyond it 400", default=128, low=1, high=100_000)
    max_request_sequences: int = key(
        "prompts of one request times `n`; beyond it 400", default=256, low=1, high=100_000
    )
    max_logprob_entries: int = key(
        "log-probabilities that one answer may hold, alternatives included; beyond it 400; an answer without "
        "`max_tokens` counts as 4,096 tokens, a streamed one as none",
        default=500_000,
        low=1000,
    )
    admin_keys: tuple[str, ...] = key(
        "API keys that may also see and delete other tenants' cache", default=(), secret=True
    )
    routing: Routing = key(
        "instances by `load` = predicted time and room; prefill by `locality` = the same, less what was sent there "
        "before; or in turns, `round_robin`; or the better of two that are drawn, `power_of_two` (baselines)",
        default="load",
    )
    timelines: int = key(
        "time lines of past requests that are kept, per replica, for `cloudmatrix explain`; 0 = none, and nothing is "
        "measured for them",
        default=512,
        low=0,
        high=100_000,
    )
    trace_endpoint: str = key(
        "where spans of requests are sent, OTLP over HTTP, such as `http://collector:4318`; empty = nowhere; needs "
        "`pip install '.[otel]'`",
        default="",
    )
    trace_share: float = key(
        "share of requests whose spans are sent, of those that come without a `traceparent`; one that comes with it "
        "is sent as its caller's flag says",
        default=1.0,
        low=0.0,
        high=1.0,
    )
    role_wait_s: float = key(
        "how long a request waits for an instance when a role has none [s]; beyond it 503; 0 = not at all",
        default=15.0,
        low=0.0,
        high=3600,
    )
    drain_s: float = key(
        "how long what runs may go on when the system is asked to stop [s]; new requests get 503 meanwhile, and what "
        "is left then an error; a second Ctrl-C ends it at once",
        default=30.0,
        low=0.0,
        high=86_400,
    )
    response_store: str = key(
        "where answers of `/v1/responses` are kept: `memory` = in each gateway's own; a `redis://` address = there, so "
        "that any gateway can go on with them; `auto` = in the Redis of [kvcache] directory, if there is one",
        default="auto",
        low=1,
        secret=True,
    )
    kept_responses: int = key(
        "answers of `/v1/responses` that are kept for each namespace; the oldest go first; 0 = none",
        default=1000,
        low=0,
    )
    kept_responses_mib: int = key("size of all that are kept for a namespace [MiB]", default=64, low=1)
    kept_response_s: float = key("how long each is kept [s]", default=86_400.0, low=1.0, high=31_536_000)
    root_path: str = key(
        "path under which a proxy shows the endpoint, as `/llm`, whether the proxy takes it off or not; empty = none",
        default="",
    )
    allowed_origins: tuple[str, ...] = key(
        "web pages that may call from a browser, as `https://chat.example.com`; `*` = any; none = no page of another "
        "origin",
        default=(),
    )
    allowed_hosts: tuple[str, ...] = key(
        "names in the `Host` header, besides `host`, this machine's name, loopback and, unless `host` is loopback, any "
        "IP address: `llm.example.com` or `*.example.com`; others get 403, where this key is set or there are no API "
        "keys; `*` = any",
        default=(),
    )
