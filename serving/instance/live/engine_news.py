"""Input and output types of an engine loop, other than commands."""

from collections.abc import Callable

from serving.instance.core.events import EngineEvent, HandoffClosed
from serving.values.news import News
from serving.values.visit_times import StepTime, VisitTimes

LoopNews = News | HandoffClosed | VisitTimes | StepTime
Post = Callable[[EngineEvent], None]
"""Passes an event to an engine; callable from any thread, returns immediately. See `EngineLoop.post`."""
