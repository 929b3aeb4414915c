"""Records of experts over a channel, for ranks that do not map each other's slots.

The rank that wants an expert asks for it, with the number of the transfer, and receives; the rank that has it sends.
The whole slot goes over, so that both ends know the length; what lies in it is seen from the record's own checksum.
"""

from collections.abc import Callable

import numpy as np

from hardware.errors import UbChannelError
from hardware.ub.channel import ChannelReceiver, ChannelSender, Pace
from serving.errors import ExpertError
from serving.model.slots.expert_slots import CopiedSlots
from serving.model.slots.slot_region import SlotLayout

Ask = Callable[[int, int, int], None]
"""Asks the other rank to send: layer, slot, number of the transfer."""


class CarriedRecords:
    """Another rank's slots, read over a channel. For one thread.

    Args:
        layout: of the other rank's slots.
        ask: does not wait for the transfer.
        deadline_s: for the whole of one transfer, its pace included.
        first_event: number of the first transfer; later than all that this channel had in this epoch.
    """

    def __init__(
        self, layout: SlotLayout, channel: ChannelReceiver, ask: Ask, deadline_s: float, first_event: int = 1
    ) -> None:
        self._layout, self._channel, self._ask = layout, channel, ask
        self._deadline_s, self._event = deadline_s, first_event

    def record(self, layer: int, slot: int) -> memoryview:
        """A slot as it was when it was sent, in memory of its own.

        Raises: ExpertError if it did not come over.
        """
        self._layout.number(layer, slot)
        event, self._event = self._event, self._event + 1
        target = np.empty(self._layout.room[layer], np.uint8).data
        self._ask(layer, slot, event)
        try:
            self._channel.receive(event, target, self._deadline_s)
        except UbChannelError as error:
            raise ExpertError(f"layer {layer}, slot {slot}: the other rank does not send it ({error})") from error
        return target


class RecordSender:
    """The other end: sends slots of this rank when it is asked to. For one thread.

    Args:
        deadline_s: for one transfer, its pace included.
        pace: of the copies.
    """

    def __init__(self, slots: CopiedSlots, channel: ChannelSender, deadline_s: float, pace: Pace | None = None) -> None:
        self._slots, self._channel, self._deadline_s, self._pace = slots, channel, deadline_s, pace

    def send(self, layer: int, slot: int, event: int) -> None:
        """Send what lies in a slot.

        Raises: ExpertError if there is no such slot; UbChannelError if the other rank does not take it.
        """
        record = self._slots.record(self._slots.layout.number(layer, slot))
        self._channel.send(event, record, self._deadline_s, self._pace)
