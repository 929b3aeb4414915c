"""Result of a lookup, with the connections under which it is leased."""

from collections.abc import Mapping, Sequence
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

    def split(self, indices: Sequence[int]) -> "tuple[LeasedPrefix, LeasedPrefix]":
        """These blocks of it, in this order, and the rest; each is to be read or released for itself."""
        chosen = set(indices)
        rest = [index for index in range(self.blocks) if index not in chosen]
        return self._only(indices), self._only(rest)

    def _only(self, indices: Sequence[int]) -> "LeasedPrefix":
        prefix = self.prefix
        found = tuple([prefix.found[index] for index in indices])
        servers = tuple([prefix.servers[index] for index in indices])
        only = FoundPrefix(found, servers, prefix.lost_blocks, prefix.reason)
        return LeasedPrefix(only, self.links, self.connections)

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
