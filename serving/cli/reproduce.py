"""`cloudmatrix reproduce`: published tables and figures, regenerated."""

import argparse
from pathlib import Path

from loadgen.exit_codes import ExitCode
from serving.tools.compilation.build import prefer_compiled

DESCRIPTION = """\
Reproduce the published figures of CloudMatrix-Infer (arXiv 2506.12708v2), of xDeepServe (arXiv 2508.02520), and of
three papers on attention and experts on separate NPUs and on lost NPUs: each figure next to ours, with the error.
Scheduler decisions are made in virtual time by the live code; the cost model computes the rest. Exits with code 1 if a
row misses by more than its known reason explains.
"""
EPILOG = """\
Examples:
  cloudmatrix reproduce                               all experiments, about two minutes
  cloudmatrix reproduce --quick --out reproduced      a smaller run, with report.md, report.html, summary.svg
  cloudmatrix reproduce --only table5,fig23           two experiments; names as --list shows them
  cloudmatrix reproduce --quick --markdown            the short error table, as in serving/virtual/README.md
The same seed gives the same figures and the same files.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--list", action="store_true", help="show the experiments and stop")
    parser.add_argument("--only", metavar="NAMES", default="", help="these experiments, separated by commas")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write report.md, report.html, summary.svg there")
    parser.add_argument("--quick", action="store_true", help="fewer dies, samples and requests: about 15 s")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="random seed (0)")
    parser.add_argument("--markdown", action="store_true", help="print only the short table")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Regenerate the chosen experiments.

    Returns: 1 if a row deviates by more than is explained.
    Raises: ConfigError in one line.
    """
    prefer_compiled()
    from loadgen.terminal import terminal_console
    from serving.terminal import make_folder, table_console
    from serving.tools.paper.experiment import Setting
    from serving.tools.paper.paper_tables import (
        ExperimentProgress,
        error_table_markdown,
        print_list,
        print_reproduction,
    )
    from serving.tools.paper.registry import choose
    from serving.tools.paper.reproduction import reproduce

    chosen = choose([name.strip() for name in arguments.only.split(",") if name.strip()])
    console = table_console()
    if arguments.list:
        print_list(chosen, console)
        return 0
    if arguments.out is not None:
        make_folder(arguments.out)
    setting = Setting(seed=arguments.seed, quick=arguments.quick)
    with ExperimentProgress(chosen, quick=arguments.quick, quiet=arguments.quiet) as progress:
        done = reproduce(chosen, setting, progress)
    if arguments.markdown:
        print(error_table_markdown(done), end="")
    else:
        print_reproduction(done, console)
    if arguments.out is not None:
        from serving.tools.paper.paper_page import write_report

        for path in write_report(arguments.out, done, setting):
            terminal_console(stderr=True).print(f"wrote {path}", highlight=False, soft_wrap=True)
    return ExitCode.FAILURE if done.score.unexplained else ExitCode.OK
