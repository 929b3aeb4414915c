"""Everything that touches a connection is tested on the loop that real runs use, and on asyncio's own."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

_FACTORIES = [uvloop.new_event_loop, asyncio.new_event_loop]


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs twice, each time on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(*args, **fixtures))

    own = inspect.signature(test)
    factory = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), factory])  # type: ignore[attr-defined] # what pytest reads
    marked: Callable[..., None] = pytest.mark.parametrize("loop_factory", _FACTORIES, ids=["uvloop", "asyncio"])(run)
    return marked
