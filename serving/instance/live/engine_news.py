"""Input of an engine loop, and its output beside orders: events and news."""

from collections.abc import Callable

from serving.instance.core.events import EngineEvent, HandoffClosed
from serving.values.news import News
from serving.values.visit_times import StepTime, VisitTimes

LoopNews = News | HandoffClosed | VisitTimes | StepTime
Post = Callable[[EngineEvent], None]
"""Tells an engine of an event; callable from any thread, returns at once. See `EngineLoop.post`."""
