"""`deploy/install.sh`: a line for each phase, pip's output in a file, and torch's CPU build where there is no GPU."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("bash", "cat", "chmod", "cut", "dirname", "du", "mkdir", "mktemp", "rm", "sed", "tail")

# An interpreter that only records pip's arguments; `pip install --target DIR uv` leaves such a program there.
PYTHON = """#!/bin/sh
echo "$@" >> "{calls}"
case "$*" in *--target*) while [ "$1" != --target ]; do shift; done; mkdir -p "$2/bin"
printf '#!/bin/sh\necho "uv $*" >> "{calls}"\ncase "$*" in *{fails}*) exit 1;; esac\n' > "$2/bin/uv"
chmod +x "$2/bin/uv";; esac
i=1; while [ $i -le 20 ]; do echo "line $i of pip"; i=$((i + 1)); done
case "$*" in *{fails}*) exit 1;; esac
"""


def program(path: Path, text: str) -> None:
    """Write a script into the machine's folder."""
    path.write_text(text)
    path.chmod(0o755)


@dataclass(frozen=True)
class Machine:
    """A machine with a few tools."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "install.log"

    @property
    def calls(self) -> list[str]:
        """Arguments of each call of pip."""
        return (self.folder / "calls").read_text().splitlines()

    def install(self, *extras: str, fails: str = "nothing", **variables: str) -> subprocess.CompletedProcess[str]:
        """Install into `env`."""
        python = self.folder / "env" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        program(python, PYTHON.format(calls=self.folder / "calls", fails=fails))
        command = [str(ROOT / "deploy" / "install.sh"), str(python), str(self.log), *extras]
        environment = {"PATH": str(self.folder), **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An x86 machine without a GPU."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (tmp_path / tool).symlink_to(found)
    program(tmp_path / "uname", "#!/bin/sh\necho x86_64\n")
    return Machine(tmp_path)


def test_a_line_for_each_phase(machine: Machine) -> None:
    done = machine.install(
        "test,docs", TORCH_PIP_ARGS="--index-url 'a b'", PIP_ARGS="--no-compile", CONSTRAINTS="c.txt"
    )
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()
    assert head.startswith(f"Installing into {machine.folder}/env (once;")
    assert str(machine.log) in head
    assert first.startswith("1 of 2: torch ... ")
    assert second.startswith("2 of 2: everything else ... ")
    pip = "-m pip install --disable-pip-version-check --no-compile"
    torch, rest = machine.calls
    assert torch.startswith(f"{pip} --index-url a b torch==")
    assert rest == f"{pip} -c c.txt -e .[test,docs]"
    assert machine.log.read_text().count("line 20 of pip") == 2


def test_without_extras_and_constraints(machine: Machine) -> None:
    assert machine.install(TORCH_PIP_ARGS="-v").returncode == 0
    assert machine.calls[1] == "-m pip install --disable-pip-version-check -e ."


def test_the_site_needs_neither_torch_nor_the_project(machine: Machine) -> None:
    done = machine.install("docs", CONSTRAINTS="c.txt")
    assert done.stdout.splitlines()[1].startswith("1 of 1: MkDocs ... ")
    (call,) = machine.calls
    assert call.startswith("-m pip install --disable-pip-version-check -c c.txt mkdocs>=")
    assert not any(word in call for word in ("torch", " -e ", "hypothesis"))
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs: ")[2].partition("\n")[0]
    assert ".installed-docs" in recipe
    assert ".installed-test" not in recipe


@pytest.mark.parametrize(("fails", "calls"), [("torch==", 1), ("-e", 2)])
def test_a_failure_shows_the_end_of_the_log(machine: Machine, fails: str, calls: int) -> None:
    done = machine.install(fails=fails, TORCH_PIP_ARGS="-v")
    assert done.returncode == 1
    assert len(machine.calls) == calls
    assert "failed after " in done.stdout
    assert done.stderr.startswith(f"The end of {machine.log}:\nline 6 of pip\n")
    assert done.stderr.endswith("line 20 of pip\n")


@pytest.mark.parametrize("spared", ["arm", "gpu", "told"])
def test_pips_own_torch_where_the_cpu_build_is_not_wanted(machine: Machine, spared: str) -> None:
    if spared == "arm":
        program(machine.folder / "uname", "#!/bin/sh\necho aarch64\n")
    if spared == "gpu":
        program(machine.folder / "nvidia-smi", "#!/bin/sh\n")
    said = machine.install(**({"TORCH_PIP_ARGS": "--index-url here"} if spared == "told" else {})).stdout
    assert "CPU" not in said
    assert len(machine.calls) == 2


def test_the_cpu_build_comes_by_itself(machine: Machine) -> None:
    done = machine.install()
    assert done.returncode == 0
    fetched, torch, rest = machine.calls
    assert "--target" in fetched
    assert torch.startswith("uv pip install --python ")
    assert torch.endswith("--torch-backend cpu " + torch.split()[-1])
    assert torch.split()[-1].startswith("torch==")
    assert rest.endswith("-e .")
    assert "1 of 2: torch, its CPU build ... " in done.stdout
    assert "5.3 GB" not in done.stdout


def test_where_cpu_wheels_cannot_be_reached_pips_index_is_used_and_the_cost_is_said(machine: Machine) -> None:
    done = machine.install(fails="--torch-backend")
    assert done.returncode == 0
    assert "1 of 2: torch, its CPU build ... failed after " in done.stdout
    assert "5.3 GB on disk instead of 1.5 GB" in done.stdout
    assert 'make serve TORCH_PIP_ARGS="--index-url ADDRESS"' in done.stdout
    assert machine.calls[2].split()[-1].startswith("torch==")


def test_it_may_be_run() -> None:
    assert os.access(ROOT / "deploy" / "install.sh", os.X_OK)
