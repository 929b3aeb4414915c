"""Source of the boards in deploy/grafana/boards/: `python -m deploy.grafana.source` writes them."""
