"""Builders and samples that tests of several packages share."""
