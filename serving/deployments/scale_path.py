"""The way to more or fewer replicas, for everybody: command line, dashboard page, REST, autoscaler.

    cloudmatrix scale ─┐
    page /pools ───────┼─► scale_pool() ─► scaling board ─► room? ─► Serve's scale API ─► hold ─► ledger
    REST …/scale ──────┘                   (one actor)
    autoscaler ──────────────────────────►     "

Works in any process that is connected to Ray, Ray's dashboard included, and needs no gateway. Each call has a deadline.
"""

import asyncio
from typing import Any

import ray

from serving.deployments.lookup import Lookup
from serving.deployments.scaling.answers import ScaleAnswer, ScaleRefusal
from serving.errors import ScaleError

__all__ = ["ScaleAnswer", "decisions", "hold_pool", "pools_state", "release_hold", "scale_pool"]

BOARD = "cloudmatrix-scaling"
NAMESPACE = "cloudmatrix"
CALL_DEADLINE_S = 5.0
_BOARD = Lookup(lambda: ray.get_actor(BOARD, NAMESPACE))


async def pools_state() -> dict[str, Any]:
    """Pools, replicas, NPUs, promises, holds and the last decisions, ready for JSON.

    Raises: ScaleError: `unavailable` if the board does not answer, `no_system` if there is none.
    """
    state: dict[str, Any] = await _ask("state")
    return state


async def scale_pool(pool: str, replicas: int, hold_s: float | None, by: str) -> ScaleAnswer:
    """Ask for so many replicas of a pool.

    Args:
        hold_s: how long the policy must leave the pool alone [s]; 0 = not at all, None = `[autoscaler] manual_hold_s`.
        by: who asks: `cli`, `page` or `rest`.
    Raises: ScaleError: `unknown_pool`, `invalid` (a negative number), `no_room` (with `fits`), `unavailable`.
    Effects: changes Serve's target; writes the ledger.
    """
    return _settled(await _ask("scale", pool, replicas, hold_s, by))


async def hold_pool(pool: str, hold_s: float | None, by: str) -> ScaleAnswer:
    """Keep the policy away from a pool as it is.

    Args:
        hold_s: for how long [s]; None = `[autoscaler] manual_hold_s`, 0 = release it.
    Raises: ScaleError: `unknown_pool`, `invalid` (a negative time), `unavailable`.
    Effects: writes the ledger.
    """
    return _settled(await _ask("hold", pool, hold_s, by))


async def release_hold(pool: str, by: str) -> ScaleAnswer:
    """Let the policy act on a pool again; nothing happens if it may already.

    Raises: ScaleError: `unknown_pool`, `unavailable`.
    Effects: writes the ledger.
    """
    return _settled(await _ask("hold", pool, 0.0, by))


async def decisions(pool: str | None = None, after: int = 0, limit: int = 200) -> list[dict[str, Any]]:
    """The ledger, newest first.

    Args:
        pool: only of this pool.
        after: only entries with a larger `id`; ids count up from 1.
    Raises: ScaleError (`unavailable`) if the board does not answer.
    """
    entries: list[dict[str, Any]] = await _ask("decisions", pool, after, limit)
    return entries


def _settled(answer: ScaleAnswer | ScaleRefusal) -> ScaleAnswer:
    if isinstance(answer, ScaleRefusal):
        raise ScaleError(answer.message, kind=answer.kind, fits=answer.fits)
    return answer


async def _ask(method: str, *arguments: Any) -> Any:
    async def answer() -> Any:
        board = await _BOARD.answer(CALL_DEADLINE_S)
        return await getattr(board, method).remote(*arguments)

    try:
        return await asyncio.wait_for(answer(), CALL_DEADLINE_S)
    except ValueError as error:  # Ray's way to say that there is no such actor
        raise ScaleError("no CloudMatrix system runs in this cluster", kind="no_system") from error
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ScaleError(
            f"the scaling board does not answer ({type(error).__name__}); try again", kind="unavailable"
        ) from error
