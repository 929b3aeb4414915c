"""A comparison as JSON, for scripts: figures in SI units with their change; unknown values are null."""

import msgspec

from serving.virtual.comparison.comparison import SimulationComparison
from serving.virtual.report.result_json import plain

SCHEMA = "cloudmatrix-comparison/1"


def comparison_json(compared: SimulationComparison) -> bytes:
    """The document, with a newline at its end."""
    document = {
        "schema": SCHEMA,
        "baseline": compared.baseline.path,
        "other": compared.other.path,
        "settings": [{"name": name, "baseline": left, "other": right} for name, left, right in compared.settings],
        "figures": [{**plain(one), "change": plain(one.change)} for one in compared.figures],
        "paired": plain(compared.paired),
        "warnings": compared.warnings,
    }
    return msgspec.json.encode(document) + b"\n"
