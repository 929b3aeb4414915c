"""A range of ports, as in `[cluster] port_range`."""

from dataclasses import dataclass

from serving.errors import ConfigError

PORT_RANGE_KEY = "[cluster] port_range"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from `first` to `last`, both included; (0, 0) = any free port."""

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Parse `"30000-30100"`, one port, or an empty text.

        Raises: ConfigError for any other text.
        """
        if not text:
            return cls()
        first, dash, last = text.partition("-")
        if not (first.strip().isdecimal() and (last if dash else first).strip().isdecimal()):
            raise ConfigError(f'{PORT_RANGE_KEY} = "{text}" is not a range of ports: write for example "30000-30100"')
        found = cls(int(first), int(last or first))
        if not 1024 <= found.first <= found.last <= 65535:
            raise ConfigError(f'{PORT_RANGE_KEY} = "{text}": ports must be from 1024 to 65535, the lower one first')
        return found


ANY_PORT = PortRange()
