"""`cloudmatrix evaluate`: how good a model is, and how far from a reference, on held-out text and on local tasks."""

from serving.evaluate.command import add_command

__all__ = ["add_command"]
