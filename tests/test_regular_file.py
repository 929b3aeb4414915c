"""Only regular files are opened, and those of a folder only inside it."""

import os
import socket
from pathlib import Path

import pytest

import loadgen.regular_file
from hardware.regular_file import IrregularFileError
from serving.regular_file import check_regular, open_regular, read_regular

pytestmark = pytest.mark.timeout(20)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    for one in (path, tmp_path / "link"):
        assert check_regular(one, within=tmp_path) == 5
        assert read_regular(one, most_bytes=5, within=tmp_path) == b"12345"
        loadgen.regular_file.check_regular(one)
    with open_regular(path) as file:
        assert file.read() == b"12345"
    with pytest.raises(IrregularFileError, match="larger than 4 bytes"):
        read_regular(path, most_bytes=4)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "none")


def test_everything_else_is_not_even_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "pipe", "a named pipe"),
            (tmp_path / "link", "a named pipe"),
            (tmp_path / "socket", "a socket"),
            (tmp_path, "a folder"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(IrregularFileError, match=f"is {kind}, not a regular file"):
                open_regular(path)
            with pytest.raises(loadgen.regular_file.IrregularInputError, match="not a regular file"):
                loadgen.regular_file.check_regular(path)


def test_nothing_outside_the_folder(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    model.mkdir()
    outside.write_text("secret")
    (model / "absolute").symlink_to(outside)
    (model / "relative").symlink_to("../outside")
    for path in (model / "absolute", model / "relative", model / ".." / "outside"):
        with pytest.raises(IrregularFileError, match="outside its folder"):
            check_regular(path, within=model)
    (tmp_path / "alias").symlink_to(model)
    (model / "own").write_text("x")
    assert check_regular(tmp_path / "alias" / "own", within=tmp_path / "alias") == 1, "the folder may be a link"


def test_a_snapshot_of_the_hugging_face_cache_has_its_files_beside_it_or_beside_all_models(tmp_path: Path) -> None:
    model = tmp_path / "models--org--name"
    snapshot, blobs = model / "snapshots" / "abc", model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "f00").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/f00")
    assert check_regular(snapshot / "config.json", within=snapshot) == 2
    (model / "refs").write_text("main")
    (snapshot / "evil.json").symlink_to("../../refs")
    with pytest.raises(IrregularFileError):
        check_regular(snapshot / "evil.json", within=snapshot)
    # Several models may share a file.
    snapshot, shared = tmp_path / "models--org--other" / "snapshots" / "abc", tmp_path / "blobs" / "f0"
    snapshot.mkdir(parents=True)
    shared.mkdir(parents=True)
    (shared / "f00").write_text("{}")
    (snapshot.parent.parent / "blobs").mkdir()
    (snapshot.parent.parent / "blobs" / "abc").symlink_to("../../blobs/f0/f00")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    assert check_regular(snapshot / "config.json", within=snapshot) == 2
    (tmp_path / "token").write_text("secret")
    (snapshot / "evil.json").symlink_to("../../../token")
    with pytest.raises(IrregularFileError):
        check_regular(snapshot / "evil.json", within=snapshot)
