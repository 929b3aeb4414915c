"""For any faults in any order: each token arrives once and is correct, every request ends, no state is left."""

import pytest

from serving.errors import EngineError, InvalidRequestError, OverloadedError
from tests.cases.nightly import mostly_nightly
from tests.fakes.executor import reference_output
from tests.live.virtual_path import Client, VirtualPath

pytestmark = pytest.mark.asyncio

MAX_LEN = 64


async def played(seed: int) -> VirtualPath:
    """Eight seconds of requests and faults, then a healthy phase until all is idle."""
    path = VirtualPath(seed)
    for _ in range(400):
        if path.rng.random() < 0.25:
            path.submit()
        if path.rng.random() < 0.03:
            path.misfortune()
        await path.step(faults=0.03)
    for pool in path.pools:
        path.join(pool)
    for _ in range(5000):
        await path.step()
        if all(client.reading.done() for client in path.clients) and all(node.at_rest for node in path.nodes):
            break
    for _ in range(5):
        await path.step()
    return path


def judge(client: Client) -> None:
    """A client's output equals a prefix of one undisturbed process's."""
    assert client.reading.done(), "it hangs"
    client.reading.result()
    assert not isinstance(client.error, InvalidRequestError), client.error
    assert not isinstance(client.error, OverloadedError) or not any(client.tokens), "turned away in mid-stream"
    assert not isinstance(client.error, EngineError) or "the gateway failed" not in str(client.error)
    for index, spec in enumerate(client.job.sequences):
        output, finish = reference_output(spec, MAX_LEN)
        got = tuple(client.tokens[index])
        assert got == output[: len(got)]
        if client.error is None and not client.left and client.ends[index] is not None:
            assert (got, client.ends[index]) == (output, finish)


SAME_AS = "tests/live/test_virtual_path.py::test_nothing_is_lost_doubled_or_left_behind"


@pytest.mark.parametrize("seed", mostly_nightly(range(20), range(6), SAME_AS))
async def test_nothing_is_lost_doubled_or_left_behind(seed: int) -> None:
    path = await played(seed)
    assert len(path.clients) > 10
    for client in path.clients:
        judge(client)
    for gate in path.gates:
        assert gate.counts() == {"running": 0, "queued": 0, "sequences": 0}
        assert (len(gate.core.room), gate.core.room.tokens) == (0, 0)
        assert not any(gate.core.routes.promised(node.replica) for node in path.nodes)
    for node in path.nodes:
        inside = node.snapshot
        assert (inside.waiting, inside.running, inside.held, inside.pulling, inside.kv_blocks_used) == (0,) * 5
        assert node.snapshot.handoffs_expired_total == 0, "blocks that nobody released"
        assert (node.server.open_sequences, node.unseen, node.inside.transport.registered) == (0, (0, 0), {})
