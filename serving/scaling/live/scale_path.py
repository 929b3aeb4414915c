"""The single path for scaling requests from the command line, the dashboard page, REST and the autoscaler.

    cloudmatrix scale ─┐
    page /pools ───────┼─► ask() ─► scaling board ─► room? ─► Serve's scale API ─► hold ─► ledger
    REST …/scale ──────┘             (one actor)
    autoscaler ────────────────────►     "

It works in any process connected to Ray, including Ray's dashboard, and needs no gateway.
"""

from typing import Any

import ray

from serving.cluster.gcs_store import ActorLookup
from serving.cluster.membership import NAME as MEMBERSHIP
from serving.deadline import within
from serving.errors import ScaleError, SilentError
from serving.values.scaling_operations import Answer, PoolOperation, ScaleRefusal

BOARD = "cloudmatrix-scaling"
NAMESPACE = "cloudmatrix"
CALL_DEADLINE_S = 5.0


def _find_board() -> Any:
    """Raises: SilentError while a deployment restarts the board; ValueError if there is no system."""
    try:
        return ray.get_actor(BOARD, NAMESPACE)
    except ValueError:
        ray.get_actor(MEMBERSHIP, NAMESPACE)  # it survives deployments
        raise SilentError("the scaling board is being recreated") from None


_BOARD = ActorLookup(_find_board)


async def ask(operation: PoolOperation[Answer]) -> Answer:
    """Send an operation to the scaling board, which responds within `CALL_DEADLINE_S`. Changes are in the ledger.

    Raises: ScaleError: the board's refusal; `unavailable` if the board does not respond, `no_system` if no system runs.
    """

    async def answered() -> Any:
        board = await _BOARD.answer(CALL_DEADLINE_S)
        return await board.answer.remote(operation)

    try:
        answer: Answer | ScaleRefusal = await within(answered(), CALL_DEADLINE_S)
    except ValueError as error:  # Ray raises this if there is no such actor
        raise ScaleError("no CloudMatrix system runs in this cluster", kind="no_system") from error
    except (ray.exceptions.RayError, TimeoutError, SilentError) as error:
        raise ScaleError(
            f"the scaling board does not answer ({type(error).__name__}); try again", kind="unavailable"
        ) from error
    if isinstance(answer, ScaleRefusal):
        raise ScaleError(answer.message, kind=answer.kind, fits=answer.fits)
    return answer
