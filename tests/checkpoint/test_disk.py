import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.checkpoint.disk import (
    FolderReader,
    make_folder,
    new_folder,
    remove_folder,
    remove_leftovers,
    replace_file,
    typed,
    write_file,
)
from qkv.errors import CheckpointError


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "best"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["best"]


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_litter(tmp_path):
    """A real limit on file sizes simulates a full disk: the write fails halfway."""
    path = tmp_path / "best"
    replace_file(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(CheckpointError, match=r"File too large.*ulimit -f"):
            replace_file(path, b"much longer than the limit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["best"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "n" * 200, "n" * 201])
def test_a_name_may_be_as_long_as_a_file_system_allows(tmp_path, name):
    path = tmp_path / name
    replace_file(path, b"one")
    assert path.read_bytes() == b"one"
    path.unlink()
    with new_folder(path) as temporary:
        write_file(temporary / "one", b"one")
    os.rename(path, temporary)
    assert remove_leftovers(tmp_path, f"{name[:-1]}x") == []
    assert remove_leftovers(tmp_path, name) == [temporary]
    with new_folder(path) as temporary:
        write_file(temporary / "two", b"two")
    remove_folder(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / kind
    mode = {"pipe": stat.S_IFIFO, "device": stat.S_IFCHR}[kind]
    try:
        os.mknod(path, mode | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only the administrator makes devices")
    with pytest.raises(CheckpointError) as caught:
        replace_file(path, b"")
    assert str(path) in caught.value.argument
    assert stat.S_IFMT(path.lstat().st_mode) == mode
    assert os.listdir(tmp_path) == [kind]


def test_writing_never_overwrites(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_folders_are_made_with_their_parents_and_twice_is_no_error(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(CheckpointError, match="It exists as a file: choose another folder"):
            make_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_someone_else_is_refused_with_the_mend(tmp_path):
    os.chmod(tmp_path, 0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match=r"Permission denied.*Choose a folder with write permission"):
            make_folder(tmp_path / "run")
    finally:
        os.seteuid(0)


def test_a_folder_of_the_kernel_cannot_be_written_to():
    with pytest.raises(CheckpointError, match="/proc/qkv: expected a folder that can be created"):
        make_folder(Path("/proc/qkv"))


FULL = """
import sys
from pathlib import Path
from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError
folder = Path(sys.argv[1])
replace_file(folder / "a", b"old")
try:
    replace_file(folder / "a", b"x" * 200_000)
except CheckpointError as error:
    print(error)
print((folder / "a").read_bytes(), sorted(path.name for path in folder.iterdir()))
"""


def test_a_full_disk_is_said_and_what_was_there_stays(tmp_path):
    script = f'mount -t tmpfs -o size=64k none "{tmp_path}" && "{sys.executable}" -c "$0" "{tmp_path}"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, FULL], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("this machine lets us mount nothing")
    assert "No space left on device" in done.stdout
    assert "Free some space" in done.stdout
    assert done.stdout.endswith("b'old' ['a']\n")


def test_removing_what_is_not_there_is_no_error(tmp_path):
    remove_folder(tmp_path / "none")


def test_only_leftovers_of_the_name_are_removed(tmp_path):
    tail = "0123456789ab"
    for name in (f".a.saving-{tail}", f".a.removing-{tail}", f".ab.saving-{tail}", ".a.saving-mine", "a.saving-x", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").write_text("x")
    (tmp_path / f".b.saving-{tail}").write_text("a file")
    removed = [path.name for path in remove_leftovers(tmp_path, "a")]
    assert removed == [f".a.removing-{tail}", f".a.saving-{tail}"]
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".a.saving-mine", "a.saving-x", "b"]


def test_a_leftover_that_is_a_link_is_removed_without_following_it(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / ".a.saving-0123456789ab").symlink_to(tmp_path / "precious")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["precious"]
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize("name", ["..", ".", "", "/etc/passwd", "../x", "a/b", "a\0b"])
def test_the_reader_opens_plain_names_only(tmp_path, name):
    with FolderReader(tmp_path) as reader, pytest.raises(CheckpointError, match="a plain file name"):
        reader.read(name, 100)


def test_the_reader_follows_no_link_and_waits_for_no_pipe(tmp_path):
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with FolderReader(tmp_path) as reader:
        assert reader.read("real", 100) == b"x"
        with pytest.raises(CheckpointError, match="It is a symbolic link"):
            reader.read("link", 100)
        for name, got in (("pipe", "a named pipe, not a regular file"), ("folder", "Is a directory")):
            with pytest.raises(CheckpointError, match=got):
                reader.read(name, 100)


def test_the_reader_holds_a_size_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 10)
    with FolderReader(tmp_path) as reader:
        assert len(reader.read("a", 10)) == 10
        assert reader.digest("a", 10)[0] == 10
        for read in (reader.read, reader.digest):
            with pytest.raises(CheckpointError, match="at most 9 bytes; got more"):
                read("a", 9)


def test_the_reader_keeps_to_its_folder_when_that_is_renamed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    with FolderReader(tmp_path / "a") as reader:
        (tmp_path / "a").rename(tmp_path / "b")
        assert reader.read("x", 10) == b"1"


def test_other_errors_pass_unchanged():
    with pytest.raises(KeyError), typed(Path("x"), "y"):
        raise KeyError


@pytest.mark.parametrize("point", range(6))
def test_a_killed_writer_leaves_no_part_of_a_folder(tmp_path, point):
    """Whenever it is killed, the folder is not there, or complete; the next writer leaves nothing else."""
    out = tmp_path / "model"
    if (pid := os.fork()) == 0:
        with new_folder(out) as temporary:
            for number in range(4):
                if number == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                write_file(temporary / f"part-{number}", b"x" * 1000)
            if point == 4:
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert out.exists() is (point == 5)
    if point < 5:
        with new_folder(out) as temporary:
            write_file(temporary / "whole", b"y")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_writer_leaves_nothing(tmp_path):
    def fail() -> None:
        with new_folder(tmp_path / "model") as temporary:
            write_file(temporary / "part", b"x")
            write_file(temporary / "part", b"exists")

    with pytest.raises(CheckpointError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder with a file", "file", "link to an empty folder", "link to nothing"])
def test_a_new_folder_takes_the_place_of_nothing_but_an_empty_one(tmp_path, kind):
    out, empty = tmp_path / "model", tmp_path / "empty"
    empty.mkdir()
    if kind == "folder with a file":
        out.mkdir()
        (out / "mine").write_bytes(b"x")
    elif kind == "file":
        out.write_bytes(b"x")
    else:
        out.symlink_to(empty if kind == "link to an empty folder" else tmp_path / "nothing")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError) as caught, new_folder(out):
        pass
    assert caught.value.expected == "a new or empty folder"
    assert sorted(tmp_path.rglob("*")) == before
    with new_folder(empty) as temporary:
        write_file(temporary / "whole", b"y")
    assert os.listdir(empty) == ["whole"]
