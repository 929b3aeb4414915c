"""`cloudmatrix quantize`: a checkpoint in INT8, without training."""

from serving.quantize.command import add_command

__all__ = ["add_command"]
