"""One-time passes: what a printed address carries so that a person who has just started the system need not type Ray's
token.

    issued at [ms], salt, MAC of both by Ray's token        joined by dots, each in a form that addresses can hold

Whoever knows Ray's token can issue one, so nothing has to be handed from the start's process to the dashboard's. Who
checks them remembers what was used for as long as it would count; one that was issued before the checking process began
counts as used, since a predecessor may have admitted it.
"""

import base64
import hmac
import secrets

LIFE_S = 600.0
"""From the print to the click: minutes, because terminals keep what they showed."""
_LIFE_MS = round(LIFE_S * 1000)
_MAC_BYTES = 16


def issue(token: str, now: float) -> str:
    """A new pass.

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
        began: when this process began to check [s since 1970].
    """

    def __init__(self, token: str, began: float) -> None:
        self._token = token
        self._began = _ms(began)
        self._used: dict[str, int] = {}
        """Passes that were admitted, with the end of their lives [ms]: as many as were issued within `LIFE_S`."""

    def admit(self, given: str, now: float) -> bool:
        """Whether this is a pass, and nobody used it before.

        Args:
            now: seconds since 1970.
        Effects: it is used from now on.
        """
        body, _, mac = given.rpartition(".")
        expected = _mac(self._token, body)
        if not hmac.compare_digest(mac.encode(errors="surrogateescape"), expected.encode()):
            return False
        issued = int(body.partition(".")[0], 16)  # it is our own writing: nobody else has the key
        at = _ms(now)
        self._used = {used: end for used, end in self._used.items() if end > at}
        if issued < self._began or not 0 <= at - issued < _LIFE_MS or body in self._used:
            return False
        self._used[body] = issued + _LIFE_MS
        return True


def _ms(at: float) -> int:
    """Whole milliseconds, never later than `at` [s]: a pass counts from the moment of its issue on."""
    return int(at * 1000)


def _mac(token: str, body: str) -> str:
    text = f"pools page, once: {body}".encode(errors="surrogateescape")
    return _text(hmac.digest(token.encode(), text, "sha256")[:_MAC_BYTES])


def _text(some: bytes) -> str:
    return base64.urlsafe_b64encode(some).rstrip(b"=").decode()
