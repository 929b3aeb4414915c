"""Files and batches of requests: what is stored, and how much runs at once."""

from dataclasses import dataclass

from serving.config.key import key
from serving.config.upgrade_rules import GATEWAY, restarts, upgrades


@dataclass(frozen=True, slots=True)
class BatchesConfig:
    """`[batches]`: `/v1/files` and `/v1/batches`, which are stored where `[gateway] response_store` says."""

    UPGRADE = upgrades(restarts(GATEWAY))
    LIVE_ONLY = "*"

    running: int = key("batches that run at once, per gateway replica; others wait", default=2, low=1, high=64)
    requests: int = key(
        "requests of all batches that run at once, per gateway replica; they run behind all other requests, but what "
        "runs shares the instances' steps with them",
        default=4,
        low=1,
        high=10_000,
    )
    lines: int = key("requests in one batch", default=50_000, low=1, high=1_000_000)
    kept: int = key(
        "batches known per namespace; the oldest that have ended are forgotten first, and if none has, further ones "
        "get 429",
        default=100,
        low=3,
    )
    max_file_bytes: int = key("largest file of `/v1/files` [bytes]; larger ones get 413", default=64 << 20, low=1024)
    files: int = key("files per namespace, those of results included; further ones get 429", default=1000, low=3)
    files_mib: int = key("size of all files of a namespace [MiB]; further ones get 429", default=256, low=1)
    kept_s: float = key(
        "how long files and batches are stored after their last change [s]; a batch may run for a day",
        default=259_200.0,
        low=90_000.0,
        high=31_536_000,
    )
