"""`cloudmatrix cost`: what one step takes on a device, operator by operator, and how far that can be trusted."""

from serving.cost_command.command import add_command

__all__ = ["add_command"]
