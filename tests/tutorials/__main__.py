"""Runs tutorials and writes the output of their commands into them: `python -m tests.tutorials [NAME ...]`."""

import argparse
from pathlib import Path

from tests.tutorials.page import FOLDER, TUTORIALS, blocks, rewrite
from tests.tutorials.reader import Reader, work_folder


def main() -> None:
    """Run each of them with its own systems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as serve; default: all")
    names = parser.parse_args().names
    for name in names or TUTORIALS:
        page = FOLDER / f"{name}.md"
        with work_folder(name) as folder, Reader(Path(folder)) as reader:
            printed = []
            for block in blocks(page):
                print(block.commands, end="", flush=True)
                printed.append(reader.do(block))
                print(printed[-1] or "", flush=True)
        rewrite(page, printed)


if __name__ == "__main__":
    main()
