"""Fixtures of tests on several hosts."""

from tests.deploy.ray_hosts import two_hosts

__all__ = ["two_hosts"]
