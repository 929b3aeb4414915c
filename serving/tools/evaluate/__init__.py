"""`cloudmatrix evaluate`: how good a model is, and how far from a reference, on held-out text and on local tasks."""
