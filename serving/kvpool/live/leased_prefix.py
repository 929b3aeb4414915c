"""Result of a lookup, with the connections under which it is leased."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.kvpool.core.entry import Found
from serving.kvpool.core.prefix_find import FoundPrefix
from serving.kvpool.live.server_link import ServerLink


@dataclass(frozen=True, slots=True)
class LeasedPrefix:
    """A found prefix, to be read or released by the client that found it.

    Args:
        links: by name, to the servers of its blocks.
        connections: to which connection of a link its entries are leased.
    """

    prefix: FoundPrefix = field(default_factory=FoundPrefix)
    links: Mapping[str, ServerLink] = field(default_factory=dict)
    connections: Mapping[str, int] = field(default_factory=dict)

    @property
    def found(self) -> tuple[Found, ...]:
        """Entries of the leading blocks."""
        return self.prefix.found

    @property
    def blocks(self) -> int:
        """Leading blocks found."""
        return len(self.prefix.found)

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        return sum([found.nbytes for found in self.prefix.found])
