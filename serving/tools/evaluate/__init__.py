"""`cloudmatrix evaluate`: quality of a model, and its distance from a reference, on held-out text and local tasks."""
