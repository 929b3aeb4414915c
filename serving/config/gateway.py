"""Gateway settings: listen address, access control and capacity."""

import logging
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import GATEWAY, SERVE, in_place, restarts, upgrades
from serving.errors import ConfigError
from serving.regular_file import read_regular

HttpServer = Literal["uvicorn", "serve"]
Order = Literal["arrival", "job"]
Routing = Literal["load", "locality", "round_robin", "power_of_two"]
Media = Literal["note", "refuse"]
ToolPauses = Literal["off", "observe", "act"]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """`[gateway]`. Listens on loopback by default; configure API keys before opening it to other hosts."""

    UPGRADE = upgrades(
        in_place(GATEWAY),
        (
            restarts(GATEWAY),
            "host port server routing tool_pauses timelines trace_endpoint trace_share response_store kept_responses "
            "kept_responses_mib kept_response_s background_responses background_lease_s",
        ),
        (in_place(SERVE), "replicas"),
    )
    LIVE_ONLY = (
        "host port server api_key_file max_body_bytes max_head_bytes head_timeout_s body_timeout_s max_connections "
        "address_share max_n max_request_sequences max_logprob_entries timelines trace_endpoint trace_share drain_s "
        "response_store kept_responses kept_responses_mib kept_response_s background_responses background_lease_s "
        "root_path allowed_origins allowed_hosts media"
    )

    host: str = key("address to listen on; `0.0.0.0` = every interface", default="127.0.0.1", low=1)
    port: int = key("TCP port", default=8000, low=1, high=65535)
    replicas: int = key("ingress replicas", default=1, low=1, high=64)
    server: HttpServer = key(
        "HTTP server: `uvicorn` inside the ingress replica, or `serve` = Ray Serve's HTTP proxy",
        default="uvicorn",
    )
    api_keys: tuple[str, ...] = key(
        "keys accepted as `Authorization: Bearer`; none = no authentication", default=(), secret=True
    )
    api_key_file: str = key(
        "file with further API keys, one per line, relative to this file; keep it at mode 600", default=""
    )
    max_body_bytes: int = key("largest request body [bytes]; larger ones get 413", default=4 * 1024 * 1024, low=1024)
    max_head_bytes: int = key(
        "largest request line plus headers [bytes]; larger ones get 431", default=64 * 1024, low=1024, high=256 * 1024
    )
    head_timeout_s: float = key(
        "time in which request line and headers must arrive [s]; then 408", default=10.0, low=0.1, high=3600
    )
    body_timeout_s: float = key(
        "longest pause between bytes of an incomplete body [s]; then 408", default=60.0, low=0.1, high=3600
    )
    max_connections: int = key(
        "concurrent connections per replica; further ones get 503, except a few reserved for `/health`, `/ready` and "
        "`/metrics`; 0 = seven eighths of the process's limit of open files (`ulimit -n`)",
        default=0,
        low=0,
        high=65_536,
    )
    address_share: float = key(
        "share of `max_connections` that one client address may use; 1 = all, for a proxy in front",
        default=0.5,
        low=0.01,
        high=1,
    )
    request_timeout_s: float = key("longest duration of a request [s]; then 408", default=600.0, low=0.1, high=86_400)
    max_running_sequences: int = key(
        "sequences running in the pools at once, per replica; further requests queue; with several API keys at most "
        "what the instances can run now, of which one key leaves a tenth to the others",
        default=256,
        low=1,
    )
    max_queued_requests: int = key(
        "requests that may queue, per replica; further ones get 429; with several API keys the queue grows by as "
        "many as the instances run fewer than `max_running_sequences`",
        default=512,
        low=0,
    )
    max_queued_tokens: int = key(
        "prompt tokens that may queue, per replica; beyond that 429; a request needs at most half of it free, so one "
        "request may exceed it, and none is too large to be accepted",
        default=1_000_000,
        low=1,
    )
    max_n: int = key("choices per prompt (`n`); more get 400", default=128, low=1, high=100_000)
    max_request_sequences: int = key("prompts of one request times `n`; more get 400", default=256, low=1, high=100_000)
    max_logprob_entries: int = key(
        "log-probabilities in one response, alternatives included; more get 400; a response without `max_tokens` "
        "counts as 4,096 tokens, a streamed one as none",
        default=500_000,
        low=1000,
    )
    admin_keys: tuple[str, ...] = key(
        "API keys that may also list and delete other tenants' cache entries", default=(), secret=True
    )
    routing: Routing = key(
        "choice of instance: `load` = predicted time and free capacity; `locality` = the same, but prefill prefers "
        "the instance that received the same prefix; baselines: `round_robin`, and `power_of_two` = the better of "
        "two drawn at random",
        default="load",
    )
    order: Order = key(
        "which waiting request of an API key starts first, among equal priorities: `arrival` = the oldest; `job` = "
        "the turn of the session that began first, so that jobs of agents end sooner; a turn overtakes only requests "
        "that arrived within 2 minutes before it; with `job` requests wait at the gateway instead of at instances",
        default="arrival",
    )
    tool_pauses: ToolPauses = key(
        "learn how long each tool of a tenant takes, from answers with tool calls to the next requests of their "
        "sessions: `observe` = for the metric `cloudmatrix:kv_pause_seconds`; `act` = sessions also keep their blocks "
        "for that time, on SSD if it is long; needs a KV-cache pool",
        default="off",
    )
    timelines: int = key(
        "timelines of past requests kept per replica for `cloudmatrix explain`; 0 = none, and nothing is measured "
        "for them",
        default=512,
        low=0,
        high=100_000,
    )
    trace_endpoint: str = key(
        "where request spans are sent, OTLP over HTTP, e.g. `http://collector:4318`; empty = not sent; needs `pip "
        "install '.[otel]'`",
        default="",
    )
    trace_share: float = key(
        "share of requests without a `traceparent` header whose spans are sent; with the header, its sampling flag "
        "decides",
        default=1.0,
        low=0.0,
        high=1.0,
    )
    role_wait_s: float = key(
        "how long a request waits while a role has no instance [s]; then 503; 0 = not at all",
        default=15.0,
        low=0.0,
        high=3600,
    )
    drain_s: float = key(
        "how long running requests may continue after the system is asked to stop [s]; new requests get 503, and "
        "what still runs at the end gets an error; a second Ctrl-C stops at once",
        default=30.0,
        low=0.0,
        high=86_400,
    )
    response_store: str = key(
        "where responses of `/v1/responses` are stored: `memory` = in each gateway; a `redis://` address = there, so "
        "that any gateway can continue them; `auto` = in the Redis of [kvcache] directory, if it is one",
        default="auto",
        low=1,
        secret=True,
    )
    kept_responses: int = key(
        "responses of `/v1/responses` stored per namespace; the oldest are dropped first; 0 = none",
        default=1000,
        low=0,
    )
    kept_responses_mib: int = key("size of all stored responses of a namespace [MiB]", default=64, low=1)
    kept_response_s: float = key("how long a response is stored [s]", default=86_400.0, low=1.0, high=31_536_000)
    media: Media = key(
        "images, files and sound in conversations, which the model cannot read: `note` = it gets a note in their "
        "place, and the response a warning header; `refuse` = 400",
        default="note",
    )
    background_responses: int = key(
        "background responses of `/v1/responses` per namespace whose events are stored, in `response_store` and within "
        "the limits of stored responses; the oldest that have ended are dropped first, and beyond that 429; 0 = "
        "background responses are refused",
        default=100,
        low=0,
    )
    background_lease_s: float = key(
        "how long after a gateway's death another one continues its background responses [s]",
        default=10.0,
        low=1.0,
        high=3600,
    )
    root_path: str = key(
        "path prefix under which a proxy exposes the endpoint, e.g. `/llm`, whether the proxy strips it or not; "
        "empty = none",
        default="",
    )
    allowed_origins: tuple[str, ...] = key(
        "web origins that may call from a browser (CORS), e.g. `https://chat.example.com`; `*` = any; none = same "
        "origin only",
        default=(),
    )
    allowed_hosts: tuple[str, ...] = key(
        "names accepted in the `Host` header, in addition to `host`, this machine's name, loopback and, unless "
        "`host` is loopback, any IP address: `llm.example.com` or `*.example.com`; others get 403 if this key is set "
        "or there are no API keys; `*` = any",
        default=(),
    )


# API keys from outside the configuration: a key file or an environment variable.

logger = logging.getLogger(__name__)

VARIABLE = "CLOUDMATRIX_API_KEYS"
_MOST_BYTES = 1 << 20
_FOR_OTHERS = stat.S_IRGRP | stat.S_IROTH


def _read_key_file(where: str, path: Path) -> tuple[str, ...]:
    """The keys in a file: one per line; empty lines and lines that start with `#` are ignored.

    Args:
        where: the flag or key that names the file, for messages, which never contain a key.
    Raises: ConfigError if it cannot be read, is not a regular file, is not text, or holds no key, which would leave the
        endpoint open.
    Effects: reads the file; logs a warning if users other than its owner may read it.
    """
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8 text: write one key per line") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{where}: {path} contains no key: write one per line")
    if mode & _FOR_OTHERS:
        logger.warning("%s: other users than the owner can read the keys in %s: run chmod 600 on it", where, path)
    return keys


def _keys_of_text(text: str) -> tuple[str, ...]:
    """Keys separated by commas or white space. Raises: ConfigError if there is none."""
    keys = tuple(filter(None, re.split(r"[,\s]+", text)))
    if not keys:
        raise ConfigError(f"{VARIABLE} is set but contains no key: give it one, or unset it")
    return keys


def with_keys(
    gateway: GatewayConfig, flags: tuple[str, ...] | None, file_flag: Path | None, environment: str | None
) -> GatewayConfig:
    """The keys of `[gateway]` from any source: flags override the environment, which overrides the configuration.

    Args:
        flags, file_flag: from the command line; both may be given.
        environment: text of the environment variable; None = not set.
    Raises: ConfigError for an unusable file or text.
    Effects: reads the key file, if there is one.
    """
    if flags is not None or file_flag is not None:
        file = "" if file_flag is None else str(file_flag)
        gateway = replace(gateway, api_keys=flags or (), api_key_file=file)
    elif environment is not None:
        gateway = replace(gateway, api_keys=_keys_of_text(environment), api_key_file="")
    if not gateway.api_key_file:
        return gateway
    where = "[gateway] api_key_file" if file_flag is None else "--api-key-file"
    more = _read_key_file(where, Path(gateway.api_key_file))
    return replace(gateway, api_keys=(*gateway.api_keys, *more))
