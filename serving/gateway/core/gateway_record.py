"""A gateway's decisions in a decision log: each event with its time, and the effects."""

from msgspec.structs import replace

from serving.gateway.core.events import GatewayEffect, GatewayEvent, GatewayOn, InstanceSays
from serving.gateway.core.gateway import Gateway
from serving.values.decision_log import CallRecord, Note, perform
from serving.values.news import News, Prefilled


class GatewayCall(CallRecord, frozen=True):
    """One event of a gateway."""

    event: GatewayEvent
    now: float

    def on(self, gateway: Gateway) -> list[GatewayEffect]:
        """Apply the event."""
        return gateway.on(self.event, self.now)

    def kind(self) -> str:
        """The event's name."""
        return type(self.event).__name__

    def title(self) -> str:
        """A short description of the event."""
        return f"{self.kind()} at {self.now:.6f} s"


def recorded(gateway: Gateway, note: Note) -> GatewayOn:
    """Wrap the gateway's `on` to record its calls.

    Args:
        note: receives each call and its recorded outcome; must return immediately.
    """

    def on(event: GatewayEvent, now: float) -> list[GatewayEffect]:
        effects, kept, error = perform(GatewayCall(event, now), gateway)
        note(GatewayCall(noted(event), now), kept)
        if error is not None:
            raise error
        return effects  # type: ignore[no-any-return]

    return on


def noted(event: GatewayEvent) -> GatewayEvent:
    """An event in the form in which it is logged: handoffs without their blocks, which a gateway only forwards."""
    if isinstance(event, InstanceSays) and any(isinstance(one, Prefilled) for one in event.news):
        return replace(event, news=tuple([_short(one) for one in event.news]))
    return event


def _short(news: News) -> News:
    return replace(news, ticket=replace(news.ticket, blocks=())) if isinstance(news, Prefilled) else news
