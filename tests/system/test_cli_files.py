"""`atoll cp` and `atoll files` as people and scripts run them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.system.test_cli import EVERY_BYTE, Cli, cli, in_terminal, sandbox, server

__all__ = ["cli", "server"]  # fixtures

LARGE = EVERY_BYTE * 100  # 7.7 MB


def test_a_file_goes_in_and_out(cli: Cli, tmp_path: Path) -> None:
    box = sandbox(cli, "copies")
    (tmp_path / "a.bin").write_bytes(LARGE)
    assert cli("cp", f"{tmp_path}/a.bin", "copies:there/b.bin").returncode == 0
    assert box.read_file("there/b.bin", encoding="bytes").content == LARGE
    assert cli("cp", f"{tmp_path}/a.bin", "copies:there").returncode == 0  # a directory takes it in
    assert box.exists("there/a.bin")
    ran = cli("cp", "copies:there/b.bin", str(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert (tmp_path / "b.bin").read_bytes() == LARGE
    assert cli("cp", "copies:there/b.bin", f"{tmp_path}/c.bin").returncode == 0
    assert (tmp_path / "c.bin").read_bytes() == LARGE
    copied = cli.document("cp", f"{tmp_path}/a.bin", "copies:d.bin")
    assert copied == {"source": f"{tmp_path}/a.bin", "target": "copies:d.bin", "bytes": len(LARGE)}


def test_a_directory_goes_in_and_out_as_with_cp(cli: Cli, tmp_path: Path) -> None:
    box = sandbox(cli, "trees")
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/file").write_text("1")
    assert cli("cp", "-r", f"{tmp_path}/tree", "trees:new").returncode == 0
    assert box.exists("new/sub/file")
    assert cli("cp", f"{tmp_path}/tree", "trees:new").returncode == 0
    assert box.exists("new/tree/sub/file")
    assert cli("cp", f"{tmp_path}/tree/", "trees:").returncode == 0
    assert box.exists("tree/sub/file")
    assert cli("cp", f"{tmp_path}/tree/sub/..", "trees:new/sub").returncode == 0
    assert box.exists("new/sub/sub/file")
    assert cli("cp", "trees:tree", f"{tmp_path}/back").returncode == 0
    assert (tmp_path / "back/sub/file").read_text() == "1"
    assert cli("cp", "trees:tree", f"{tmp_path}/back").returncode == 0
    assert (tmp_path / "back/tree/sub/file").read_text() == "1"


def test_what_cannot_be_copied_with_a_directory_is_named(cli: Cli, tmp_path: Path) -> None:
    sandbox(cli, "pipes")
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/a\x1bb")
    said = f"left out of '{tmp_path}/tree', as no file, directory or link: 'a\\x1bb'"
    ran = cli("cp", f"{tmp_path}/tree", "pipes:tree")
    assert (ran.returncode, ran.stdout, ran.stderr.decode()) == (0, b"", f"atoll: {said}\n")
    assert cli.document("cp", f"{tmp_path}/tree", "pipes:other")["warnings"] == [said]
    cli("exec", "pipes", "mkfifo tree/inside")
    assert b"'inside'" in cli("cp", "pipes:tree", f"{tmp_path}/back").stderr


def test_what_is_excluded_stays_where_it_is(cli: Cli, tmp_path: Path) -> None:
    box = sandbox(cli, "excluded")
    for name in ("app/a.py", "app/a.pyc", "app/node_modules/b", "app/c.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "rules").write_text("*.log\n")
    rules = ("-x", "node_modules", "--exclude", "*.pyc", "--exclude-from", str(tmp_path / "rules"))
    assert cli("cp", *rules, f"{tmp_path}/app", "excluded:app").returncode == 0
    assert box.readdir("app") == ["a.py"]
    assert cli("cp", f"{tmp_path}/app", "excluded:all").returncode == 0
    assert cli("cp", *rules, "excluded:all", f"{tmp_path}/back").returncode == 0
    assert os.listdir(tmp_path / "back") == ["a.py"]
    assert cli("cp", "--exclude-from", f"{tmp_path}/no", "excluded:all", f"{tmp_path}/more").returncode == 1


def test_a_link_that_leads_out_is_named_and_stays(cli: Cli, tmp_path: Path) -> None:
    sandbox(cli, "links")
    cli("exec", "links", "mkdir tree && ln -s /etc/passwd tree/out && touch tree/file")
    ran = cli("cp", "links:tree", f"{tmp_path}/tree")
    assert ran.returncode == 0
    assert ran.stderr == b"atoll: left out of 'tree', as a link that leads out of it: 'out' to '/etc/passwd'\n"
    assert os.listdir(tmp_path / "tree") == ["file"]


def test_standard_input_and_output_are_files_too(cli: Cli) -> None:
    sandbox(cli, "pipes")
    assert cli("cp", "-", "pipes:in.bin", stdin=LARGE).returncode == 0
    ran = cli("cp", "pipes:in.bin", "-")
    assert (ran.returncode, ran.stdout) == (0, LARGE)
    assert cli("files", "cat", "pipes", "in.bin", "in.bin").stdout == LARGE * 2
    with cli.start("cp", "pipes:in.bin", "-") as process:
        assert process.stdout
        process.stdout.read(10)
        process.stdout.close()
        process.wait()
    assert process.returncode == 141


def test_a_remedy_names_the_option_that_helps(cli: Cli) -> None:
    sandbox(cli, "helped").mkdir("d")
    assert b"With -r" in cli("files", "rm", "helped", "d").stderr
    assert b"with -p" in cli("files", "mkdir", "helped", "no/such").stderr


def test_a_tree_is_listed_with_each_directory_before_what_is_in_it(cli: Cli) -> None:
    sandbox(cli, "tree").exec("mkdir -p a/b c; touch a/x a/b/y a-z c/w")
    names = [line.split()[-1] for line in cli("files", "ls", "-r", "tree").stdout.decode().splitlines()[1:]]
    tree = ["a", "a/b", "a/b/y", "a/x", "a-z", "c", "c/w"]
    assert names == [f"/workspace/{name}" for name in tree]


@pytest.mark.parametrize(
    "words",
    [
        ("cp", "a", "b"),
        ("cp", "one:a", "two:b"),
        ("cp", "a", "NOT AN ID:b"),
        ("cp", "a"),
        ("cp", "one:a", "-", "--json"),
        ("files", "ls"),
        ("files", "cat", "one"),
        ("files", "no-such-verb"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.startswith((b"atoll: ", b"{"))
    assert cli.ids() == []


def test_a_local_name_with_a_colon_is_told_from_a_sandbox(cli: Cli, tmp_path: Path) -> None:
    box = sandbox(cli, "colons")
    (tmp_path / "a:b").write_text("1")
    assert cli("cp", f"{tmp_path}/a:b", "colons:x:y").returncode == 0
    assert box.read_file("x:y").content == "1"


def test_what_fails_is_told_with_its_code(cli: Cli, tmp_path: Path) -> None:
    sandbox(cli, "fails")
    for words, code in (
        (("cp", "fails:no", str(tmp_path)), b"FILE_NOT_FOUND"),
        (("cp", f"{tmp_path}/no", "fails:x"), b"FILE_NOT_FOUND"),
        (("cp", "fails:/etc/hostname", f"{tmp_path}/no/x"), b"FILE_NOT_FOUND"),
        (("files", "ls", "fails", "no"), b"FILE_NOT_FOUND"),
        (("files", "cat", "fails", "."), b"IS_DIRECTORY"),
        (("files", "rm", "fails", "/tmp"), b"IS_DIRECTORY"),
        (("files", "mkdir", "fails", "a/b"), b"FILE_NOT_FOUND"),
    ):
        ran = cli(*words)
        assert (ran.returncode, ran.stdout) == (1, b""), words
        assert b"[%b]" % code in ran.stderr
        ran = cli(*words, "--json")
        if words[1] != "cat":
            assert json.loads(ran.stderr)["code"] == code.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("files", "ls", "nobody"),
        ("files", "cat", "nobody", "/etc/hostname"),
        ("files", "rm", "nobody", "a"),
        ("files", "stat", "nobody", "/etc"),
        ("cp", "nobody:/etc/hostname", "-"),
        ("cp", "nobody:/etc/hostname", "."),
    ],
)
def test_a_look_at_a_sandbox_that_is_not_there_makes_none(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"[SANDBOX_NOT_FOUND]" in ran.stderr
    assert cli.ids() == []


def test_files_are_listed_for_people_and_for_programs(cli: Cli) -> None:
    box = sandbox(cli, "lists")
    assert b"Nothing there" in cli("files", "ls", "lists").stderr
    assert cli("files", "mkdir", "lists", "-p", "d/e").returncode == 0
    box.write_file("d/file", b"x" * 2000, mode=0o640)
    box.write_file(".hidden", b"")
    box.exec("ln -s d/file link")
    lines = cli("files", "ls", "lists").stdout.decode().splitlines()
    assert lines[0].split() == ["MODE", "SIZE", "MODIFIED", "NAME"]
    assert lines[1].endswith(" d")
    assert lines[2].endswith(" link → d/file")
    assert len(lines) == 3
    shown = cli("files", "ls", "lists", "-ra").stdout.decode()
    assert "/workspace/d/file" in shown and "/workspace/.hidden" in shown
    document = cli.document("files", "ls", "lists", "d")
    assert document["count"] == 2
    assert (document["files"][1]["path"], document["files"][1]["mode"]) == ("/workspace/d/file", "0640")
    assert cli.document("files", "stat", "lists", "link")["type"] == "symlink"
    assert b"0640" in cli("files", "stat", "lists", "d/file").stdout
    assert cli("files", "rm", "lists", "d", "link", "-r").returncode == 0
    assert box.readdir(".") == [".hidden"]


@pytest.mark.parametrize(
    "name", [b"\x1b[31mred\x1b[0m", b"\x9b31m", b"new\nline", b"\xff\xfe", b"\r\x08", "\u202e".encode()]
)
def test_a_name_does_not_reach_the_terminal_as_it_is(cli: Cli, name: bytes, tmp_path: Path) -> None:
    box = sandbox(cli, "names")
    box.write_file(name, b"1")
    os.symlink(name, tmp_path / "link")
    shown = cli("files", "ls", "names").stdout
    assert name not in shown
    assert b"\x1b" not in shown
    assert len(shown.splitlines()) == 2
    assert name not in in_terminal(cli, "files", "ls", "names")
    assert name not in in_terminal(cli, "files", "stat", "names", os.fsdecode(name))
    assert cli.document("files", "ls", "names")["count"] == 1
    missing = cli("files", "cat", "names", os.fsdecode(name) + "x")
    assert missing.returncode == 1
    assert name not in missing.stderr
    assert cli("cp", f"names:{os.fsdecode(name)}", f"{tmp_path}/out").returncode == 0
    assert (tmp_path / "out").read_bytes() == b"1"


def test_progress_is_shown_where_a_person_watches_and_nowhere_else(cli: Cli, tmp_path: Path) -> None:
    sandbox(cli, "progress")
    (tmp_path / "a").write_bytes(LARGE)
    assert b"MB" in in_terminal(cli, "cp", f"{tmp_path}/a", "progress:a")
    assert in_terminal(cli, "cp", f"{tmp_path}/a", "progress:a", "--json").startswith(b"{")
    ran = cli("cp", "progress:a", f"{tmp_path}/b")
    assert (ran.stdout, ran.stderr) == (b"", b"")


def test_a_copy_that_is_interrupted_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    box = sandbox(cli, "interrupted")
    with cli.start("cp", "-", "interrupted:file", stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(LARGE)
        process.stdin.flush()
        process.terminate()
        assert process.wait() == 143
        process.stdin.close()
    while box.readdir("."):  # the agent learns of it in its own time
        pass
    assert not box.exists("file")
