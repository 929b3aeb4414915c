"""Writes a Hugging Face checkpoint: safetensors files with their index, config.json and further files.

    X.weight        [out, in] int8            X.weight_scale  [out, 1] float32

All files are written into a temporary sibling folder, which is renamed at the end, so an interrupted run leaves no
checkpoint that appears complete.
"""

import glob
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from serving.errors import ConfigError
from serving.model.checkpoint import INT8_SCALE, Int8Weight
from serving.model.weight_files import INDEX

SHARD_BYTES = 4 << 30
_PARTIAL = ".partial"


class CheckpointWriter:
    """Writes tensors into shards, one shard in memory at a time.

    Args:
        folder: destination of the checkpoint; must not exist or be empty.
        shard_bytes: size at which a shard is written.
    Raises: ConfigError if the folder is not empty or cannot be created.
    Effects: creates a sibling folder, which `finish` renames and an exception removes; removes leftovers of killed
    runs.
    """

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder.resolve()  # resolves links and `.`, so that it has a name and siblings
        self.total_bytes = 0
        self._partial = self.folder.with_name(f".{self.folder.name}.{os.getpid()}{_PARTIAL}")
        self._keep = False
        self._shard_bytes = shard_bytes
        self._waiting: dict[str, Tensor] = {}
        self._shards: list[list[str]] = []

    def __enter__(self) -> Self:
        refuse_used(self.folder)
        try:
            self._forget_dead()
            self._partial.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"--out {self.folder} cannot be created ({error.strerror})") from error
        except BaseException:  # also Ctrl-C once the folder exists: `__exit__` does not run if `__enter__` fails
            shutil.rmtree(self._partial, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep:
            shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, name: str, tensor: Tensor | Int8Weight) -> None:
        """Add a tensor.

        Raises: ConfigError if the disk is full.
        Effects: may write a shard.
        """
        parts = {name: tensor} if isinstance(tensor, Tensor) else _int8_parts(name, tensor)
        size = sum(part.nbytes for part in parts.values())
        if self._waiting and sum(t.nbytes for t in self._waiting.values()) + size > self._shard_bytes:
            self._flush()
        self._waiting |= {key: part.contiguous() for key, part in parts.items()}
        self.total_bytes += size

    def finish(self, config: Mapping[str, object], texts: Mapping[str, str], copies: Iterable[Path] = ()) -> None:
        """Write the remaining tensors and rename the folder.

        Args:
            config: of the model.
            texts: further files by name.
            copies: files that are copied.
        Raises: ConfigError if the folder is now in use; the written files are then kept, and the message names their
        folder.
        """
        self._flush()
        self._name_shards()
        for path in copies:
            shutil.copy2(path, self._partial / path.name)
        _write_json(self._partial / "config.json", config)
        for name, text in texts.items():
            (self._partial / name).write_text(text, encoding="utf-8")
        try:
            refuse_used(self.folder)
            self._partial.rename(self.folder)
        except (ConfigError, OSError) as error:
            self._keep = True
            raise ConfigError(f"{error}; the checkpoint is complete and is in {self._partial}: rename it") from error

    def _forget_dead(self) -> None:
        """Remove sibling folders of other runs whose processes have ended."""
        for left in self.folder.parent.glob(f".{glob.escape(self.folder.name)}.*{_PARTIAL}"):
            pid = left.name.removesuffix(_PARTIAL).rpartition(".")[2]
            if pid.isdigit() and (int(pid) == os.getpid() or not Path("/proc", pid).exists()):
                shutil.rmtree(left, ignore_errors=True)

    def _flush(self) -> None:
        if self._waiting:
            shard = self._partial / _shard_name(len(self._shards), None)
            try:
                save_file(self._waiting, shard, metadata={"format": "pt"})
                shard.chmod(0o644)  # safetensors makes files readable by their owner only
            except (OSError, SafetensorError) as error:
                raise ConfigError(
                    f"{self.folder} cannot be written ({error}): make room, or give another --out"
                ) from error
            self._shards.append(list(self._waiting))
            self._waiting = {}

    def _name_shards(self) -> None:
        count = len(self._shards)
        names = ["model.safetensors"] if count == 1 else [_shard_name(number, count) for number in range(count)]
        for number, name in enumerate(names):
            (self._partial / _shard_name(number, None)).rename(self._partial / name)
        if count > 1:
            weight_map = {key: name for keys, name in zip(self._shards, names, strict=True) for key in keys}
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            _write_json(self._partial / INDEX, index)


def refuse_used(folder: Path) -> None:
    """Raises: ConfigError unless the folder does not exist, or is empty and can be replaced."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder} is not empty: give a new folder")
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be read ({error.strerror}): give a new folder") from error
    real = folder.resolve()
    if real.is_mount() or Path.cwd().is_relative_to(real):
        raise ConfigError(
            f"--out {folder} is a mount point or the current directory: give a new folder, such as {folder / 'model'}"
        )


def _int8_parts(name: str, given: Int8Weight) -> dict[str, Tensor]:
    return {name: given.weight, name + INT8_SCALE: given.scale.unsqueeze(1)}


def _shard_name(number: int, count: int | None) -> str:
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors" if count else f"shard-{number + 1:05d}"


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
