"""Manifests for KubeRay, and what makes two of them."""
