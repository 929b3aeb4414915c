"""Manifests for KubeRay, and the generator of two of them."""
