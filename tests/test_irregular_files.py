"""Files of every command: a pipe or a device in place of a file is an immediate error that names it."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hardware.cost.device_file import load_device
from hardware.cost.model_config import load_shape
from hardware.errors import SpecError
from loadgen.errors import UsageError
from loadgen.run_folder import RESULT, SENT, SERVER_METRICS, read_bodies, read_result
from loadgen.server.series import read_series
from serving.cli.system_options import system_of
from serving.config.load import load_config
from serving.errors import ConfigError, DecisionLogError
from serving.faults.scenario import load_scenario
from serving.tools.evaluate.tasks.task_file import read_task_file
from serving.tools.evaluate.texts import read_documents
from serving.tools.replay import replay

ERRORS = (SpecError, ConfigError, DecisionLogError, UsageError)


def _token(path: Path) -> object:
    return system_of(argparse.Namespace(token=None, token_file=path, dashboard=None))


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a configuration": ("serve.toml", load_config),
    "a device": ("device.toml", load_device),
    "a model's shape": ("config.json", load_shape),
    "faults": ("faults.toml", load_scenario),
    "a decision log": ("engine.decisions", replay),
    "a text": ("text.txt", read_documents),
    "a task": ("task.yaml", read_task_file),
    "a token": ("token", _token),
    "a result": (RESULT, lambda path: read_result(path.parent)),
    "sent bodies": (SENT, lambda path: read_bodies(path.parent)),
    "the server's series": (SERVER_METRICS, lambda path: read_series(path.parent)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices(tmp_path: Path, reader: str) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(ERRORS, match=rf"(?s){path}.*(named pipe|pipe or device|no(t a)? regular file)"):
        read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ERRORS, match=rf"(?s){path}.*(a device|pipe or device|no(t a)? regular file)"):
        read(path)
