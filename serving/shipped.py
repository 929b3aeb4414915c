"""Topologies and models that come with the package: `deploy/` of a checkout, or its copy inside an installed wheel."""

from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1] / "deploy"
SHIPPED = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().with_name("deploy")
DEFAULT_CONFIG = SHIPPED / "small.toml"
