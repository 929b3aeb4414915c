"""Grafana: boards, their source, provisioning."""
