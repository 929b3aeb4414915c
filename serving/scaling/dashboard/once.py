"""One-time passes in the printed URL, which save the operator from typing Ray's token after starting the system.

    issued at [ms], salt, MAC of both by Ray's token        joined by dots, each URL-safe

Every process with Ray's token can issue passes, so the launcher and the dashboard need not exchange them. The checking
process remembers used passes until they expire. A pass issued before that process started counts as used, because a
predecessor may have admitted it.
"""

import base64
import hmac
import secrets

LIFE_S = 600.0
"""Lifetime of a pass [s], from printing to the click: minutes, because terminals keep their output."""
_LIFE_MS = round(LIFE_S * 1000)
_MAC_BYTES = 16


def issue(token: str, now: float) -> str:
    """Issue a pass.

    Args:
        token: Ray's.
        now: seconds since 1970.
    """
    body = f"{_ms(now):x}.{_text(secrets.token_bytes(6))}"
    return f"{body}.{_mac(token, body)}"


class OncePasses:
    """Admits each pass once.

    Args:
        token: Ray's.
        began: time at which this process started to check passes [s since 1970].
    """

    def __init__(self, token: str, began: float) -> None:
        self._token = token
        self._began = _ms(began)
        self._used: dict[str, int] = {}
        """Admitted passes with their expiry [ms]; at most those issued within `LIFE_S`."""

    def admit(self, given: str, now: float) -> bool:
        """Check a pass, and mark it as used if it is admitted.

        Args:
            now: seconds since 1970.
        Returns: whether the pass is valid and unused.
        """
        body, _, mac = given.rpartition(".")
        expected = _mac(self._token, body)
        if not hmac.compare_digest(mac.encode(errors="surrogateescape"), expected.encode()):
            return False
        issued = int(body.partition(".")[0], 16)  # safe to parse: the MAC proves that `issue` wrote it
        at = _ms(now)
        self._used = {used: end for used, end in self._used.items() if end > at}
        if issued < self._began or not 0 <= at - issued < _LIFE_MS or body in self._used:
            return False
        self._used[body] = issued + _LIFE_MS
        return True


def _ms(at: float) -> int:
    """Whole milliseconds, rounded down, so that a pass is valid from the moment of its issue."""
    return int(at * 1000)


def _mac(token: str, body: str) -> str:
    text = f"pools page, once: {body}".encode(errors="surrogateescape")
    return _text(hmac.digest(token.encode(), text, "sha256")[:_MAC_BYTES])


def _text(some: bytes) -> str:
    return base64.urlsafe_b64encode(some).rstrip(b"=").decode()
