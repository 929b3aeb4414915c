"""report.md, report.html and summary.svg, written."""

from pathlib import Path

from serving.report_files import write_file
from serving.tools.paper.markdown import report_markdown
from serving.tools.paper.page import report_page
from serving.tools.paper.reproduction import Reproduction
from serving.tools.paper.setting import Setting
from serving.tools.paper.summary_chart import summary_file


def write_report(folder: Path, done: Reproduction, setting: Setting) -> tuple[Path, Path, Path]:
    """Write all three into a folder that exists.

    Returns: their paths.
    Raises: ConfigError if a file cannot be written.
    """
    markdown, page, drawing = folder / "report.md", folder / "report.html", folder / "summary.svg"
    write_file(markdown, report_markdown(done).encode())
    html = report_page(done, device=setting.cost.device.title, model=setting.cost.shape.name)
    write_file(page, html.encode())
    write_file(drawing, summary_file(done))
    return markdown, page, drawing
