"""What goes into an engine loop, and what comes out: commands and news."""

from collections.abc import Callable
from typing import Protocol

from serving.engine.engine import InstanceEngine
from serving.engine.events import HandoffClosed
from serving.values.news import News

Command = Callable[[InstanceEngine, float], None]
LoopNews = News | HandoffClosed


class Post(Protocol):
    """Gives an engine a command; see `EngineLoop.post`."""

    def __call__(self, command: Command, *, quiet: bool = False) -> None:
        """Callable from any thread; returns at once."""
        ...
