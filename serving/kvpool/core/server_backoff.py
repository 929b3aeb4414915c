"""When a client of the pool uses a server again after a failure, and how long it waits for a greeting.

    failed ──► skipped for a pause ──► connects, without waiting for the greeting ──► used, if the greeting is there
                 ▲ the pause doubles with each failure in a row                        │ responds: the pause is reset
                 └────────────── no greeting within `CONNECT_S` ◄──────────────────────┘

So a server that stops responding costs each client one deadline, and later requests no time until it responds again.
Live links and virtual time follow it.
"""

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 5.0
CONNECT_S = 0.5
"""A live server accepts a connection and greets within this, however much later the deadline is."""


class ServerBackoff:
    """One client's view of one server.

    Attributes:
        pause_s: length of the last pause; 0 = the server has responded since.
        retry_at: the server is skipped before this time.
        greet_until: when the greeting of the current connection is due.
    """

    def __init__(self) -> None:
        self.pause_s = 0.0
        self.retry_at = 0.0
        self.greet_until = 0.0

    def skips(self, now: float) -> bool:
        """Whether the server is left alone after a failure."""
        return now < self.retry_at

    def connect_s(self, deadline: float, now: float) -> float:
        """How long a connection may take [s]."""
        return min(deadline - now, CONNECT_S)

    def on_connected(self, now: float) -> None:
        """A connection was opened; its greeting is due."""
        self.greet_until = now + CONNECT_S

    def waits_for_greeting(self, now: float) -> bool:
        """Whether a request waits for the server's greeting; after a failed connection it fails at once."""
        return not (self.pause_s and now < self.greet_until)

    def greeting_deadline(self, deadline: float, now: float) -> float:
        """How long a request waits for the greeting."""
        return min(deadline, max(self.greet_until, now))

    def on_answer(self) -> None:
        """Reset the pause after a response; a greeting alone does not show that the server works."""
        self.pause_s = 0.0

    def on_failure(self, now: float) -> None:
        """A request, or the greeting, failed."""
        self.pause_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), LAST_PAUSE_S)
        self.retry_at = max(self.retry_at, now + self.pause_s)

    def retire(self) -> None:
        """The server left the pool: it is never used again under this link."""
        self.retry_at = float("inf")
