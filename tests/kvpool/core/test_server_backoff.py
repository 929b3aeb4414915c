"""When a client uses a server again that failed."""

from serving.kvpool.core import server_backoff
from serving.kvpool.core.server_backoff import FIRST_PAUSE_S, LAST_PAUSE_S, ServerBackoff


def test_pauses_double_up_to_a_limit_and_end_with_an_answer() -> None:
    backoff, pauses = ServerBackoff(), []
    for now in range(0, 80, 10):
        backoff.on_failure(float(now))
        assert backoff.skips(now + backoff.pause_s - 0.01)
        assert not backoff.skips(now + backoff.pause_s)
        pauses.append(backoff.pause_s)
    assert pauses == [FIRST_PAUSE_S, 0.4, 0.8, 1.6, 3.2, LAST_PAUSE_S, LAST_PAUSE_S, LAST_PAUSE_S]
    backoff.on_connected(90.0)
    assert not backoff.waits_for_greeting(90.1)
    assert backoff.greeting_deadline(1e6, 90.1) == 90.0 + server_backoff.CONNECT_S
    backoff.on_answer()
    assert backoff.waits_for_greeting(90.1)
    backoff.retire()
    assert backoff.skips(1e12)
