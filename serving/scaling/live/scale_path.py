"""The way to more or fewer replicas, for everybody: command line, dashboard page, REST, autoscaler.

    cloudmatrix scale ─┐
    page /pools ───────┼─► ask() ─► scaling board ─► room? ─► Serve's scale API ─► hold ─► ledger
    REST …/scale ──────┘             (one actor)
    autoscaler ────────────────────►     "

Works in any process that is connected to Ray, Ray's dashboard included, and needs no gateway.
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
    """Raises: SilentError while a deployment makes the board anew; ValueError if there is no system."""
    try:
        return ray.get_actor(BOARD, NAMESPACE)
    except ValueError:
        ray.get_actor(MEMBERSHIP, NAMESPACE)  # it outlives deployments
        raise SilentError("the scaling board is being made anew") from None


_BOARD = ActorLookup(_find_board)


async def ask(operation: PoolOperation[Answer]) -> Answer:
    """Have the scaling board do or tell something, within `CALL_DEADLINE_S`.

    Raises: ScaleError: what the operation is refused with; `unavailable` if the board does not answer, `no_system` if
        there is none.
    Effects: as the operation says; changes are in the ledger.
    """

    async def answered() -> Any:
        board = await _BOARD.answer(CALL_DEADLINE_S)
        return await board.answer.remote(operation)

    try:
        answer: Answer | ScaleRefusal = await within(answered(), CALL_DEADLINE_S)
    except ValueError as error:  # Ray's way to say that there is no such actor
        raise ScaleError("no CloudMatrix system runs in this cluster", kind="no_system") from error
    except (ray.exceptions.RayError, TimeoutError, SilentError) as error:
        raise ScaleError(
            f"the scaling board does not answer ({type(error).__name__}); try again", kind="unavailable"
        ) from error
    if isinstance(answer, ScaleRefusal):
        raise ScaleError(answer.message, kind=answer.kind, fits=answer.fits)
    return answer
