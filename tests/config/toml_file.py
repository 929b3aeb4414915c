"""Writes configuration files for the tests of the loader."""

from pathlib import Path

from serving.config import ServeConfig, load_config

MODEL = '[model]\npath = "checkpoint"\n'


def write(folder: Path, text: str, *, model: str = MODEL) -> Path:
    """A file `site.toml` in `folder`: a model section, then `text`."""
    file = folder / "site.toml"
    file.write_text(model + text, encoding="utf-8")
    return file


def load(folder: Path, text: str, *, model: str = MODEL) -> ServeConfig:
    """The configuration that such a file gives."""
    return load_config(write(folder, text, model=model))


def checkpoint(folder: Path, name: str = "checkpoint") -> Path:
    """A folder that passes the first checks of a Hugging Face checkpoint."""
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")
    return path
