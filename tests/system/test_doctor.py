"""`atoll doctor` as people run it, on this machine and on worse ones; and that nothing of its trials remains."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from atoll.cli.verbs.doctor import Report
from atoll.engine.native.cgroups import parse_mounts
from atoll.engine.native.probe_child import Inside, ProbeFailed, probe_child
from atoll.engine.native.syscalls import Namespace
from atoll.protocol.ids import SandboxId
from atoll.storage.loop_devices import find_device, machine_lock
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import PoolStorage
from atoll.store.keys import Keys
from atoll.store.sqlite.database import MIGRATIONS, NAME
from atoll.store.sqlite.store import SqliteStore
from atoll.supervisor.estate import Inherited, write_note
from atoll.telemetry.findings import Area, Finding, Status
from tests import kept
from tests.system.serving import HANG_SECONDS

DOCTOR = (sys.executable, "-m", "atoll.cli", "doctor")
# Not root; but able to read the Python it runs on, wherever that is kept.
AS_NOBODY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip


class Examined:
    """What the program said, and how it ended."""

    def __init__(self, ran: subprocess.CompletedProcess[str]) -> None:
        assert "Traceback" not in ran.stderr, ran.stderr
        self.exit_code = ran.returncode
        self.report = msgspec.json.decode(ran.stdout, type=Report)
        self.findings = {finding.name: finding for finding in self.report.findings}

    def __getitem__(self, name: str) -> Finding:
        return self.findings[name]


def examine(state: Path, *options: str, before: tuple[str, ...] = (), **more: str) -> Examined:
    command = [*before, *DOCTOR, "--json", "--state-dir", str(state), *options]
    return Examined(subprocess.run(command, capture_output=True, text=True, env=os.environ | more))


def on_worse_machine(script: str, state: Path) -> Examined:
    """After `script`, in a mount namespace of its own."""
    worse = ("unshare", "--mount", "sh", "-ec", f'{script}\nexec "$@"', "sh")
    return examine(state, "--no-trial", before=worse)


def test_a_machine_with_another_cpu_is_told_which_will_do(tmp_path: Path) -> None:
    examined = examine(tmp_path, "--no-trial", before=("setarch", "i686"))
    assert examined.exit_code == 1
    assert examined["system"].status is Status.MISSING
    assert examined["system"].found == "sandboxes are made on x86_64 and aarch64; this is i686"
    assert "seccomp" not in examined.findings, "nothing that would mislead was tried"


def children() -> set[str]:
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def backing_files() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # another run's, detached just now
            yield path.read_text()


@pytest.fixture(autouse=True)
def nothing_remains(tmp_path: Path) -> Iterator[None]:
    """Orphans come to us, so that none goes unseen; they end by themselves, or this does not."""
    before = children()
    yield
    while orphans := children() - before:
        os.waitpid(int(orphans.pop()), 0)
    assert str(tmp_path) not in Path("/proc/mounts").read_text(), "a mount was left behind"
    give_up = time.monotonic() + HANG_SECONDS
    while left := [backing for backing in backing_files() if str(tmp_path) in backing]:
        assert time.monotonic() < give_up, f"a loop device was left behind: {left}"
        time.sleep(0.01)
    assert not list(tmp_path.rglob(".atoll-doctor-*")), "a directory was left behind"


def doctors_groups() -> list[Path]:
    found = parse_mounts(Path("/proc/mounts").read_text())
    mounts = {*found.v1.values(), *([found.v2] if found.v2 else [])}
    return [group for mount in mounts for group in Path(mount).glob("atoll-doctor-*")]


def test_this_machine_is_fit_and_the_trial_says_how_long_it_took(tmp_path: Path) -> None:
    seen = examine(tmp_path / "state")
    assert (seen.exit_code, seen.report.fit) == (0, True), seen.report
    assert seen.report.summary.startswith("This machine can run sandboxes.")
    assert [finding.name for finding in seen.report.findings if finding.status == Status.UNKNOWN] == []
    assert seen["a sandbox"].area == Area.TRIAL
    assert "ms" in seen["a sandbox"].found
    assert not (tmp_path / "state").exists()


def test_the_document_is_the_same_shape_for_every_finding(tmp_path: Path) -> None:
    ran = subprocess.run([*DOCTOR, "--json", "--no-trial", "--state-dir", tmp_path], capture_output=True, check=True)
    document = msgspec.json.decode(ran.stdout)
    assert list(document) == ["version", "state_directory", "fit", "summary", "findings"]
    assert document["state_directory"] == str(tmp_path)
    for finding in document["findings"]:
        assert list(finding) == ["area", "name", "status", "found", "remedy"]
        assert bool(finding["remedy"]) == (finding["status"] != "ok")
    names = [finding["name"] for finding in document["findings"]]
    assert len(names) == len(set(names))
    assert "a sandbox" not in names


def test_its_control_groups_are_gone_when_it_is(tmp_path: Path) -> None:
    program = subprocess.Popen([*DOCTOR, "--state-dir", tmp_path], stdout=subprocess.DEVNULL)
    assert program.wait() == 0
    assert not [group for group in doctors_groups() if group.name.startswith(f"atoll-doctor-{program.pid}-")]


def test_without_root_it_says_so_and_what_else_it_can_see(tmp_path: Path) -> None:
    seen = examine(tmp_path, before=AS_NOBODY)
    assert (seen.exit_code, seen.report.fit) == (1, False)
    assert seen["root"].status == Status.MISSING and "sudo" in seen["root"].remedy
    assert seen["idmap of /usr"].status == Status.UNKNOWN
    assert seen["kernel"].status == seen["seccomp"].status == seen["host image"].status == Status.OK
    assert "a sandbox" not in seen.findings
    assert "first: root" in seen.report.summary


def test_the_root_of_a_user_namespace_is_not_enough(tmp_path: Path) -> None:
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    seen = examine(tmp_path, before=("unshare", "--user", "--map-root-user", "sh", "-ec", script, "sh"))
    assert seen.exit_code == 1
    assert "user namespace" in seen["root"].found
    assert seen["namespaces"].status == seen["namespace limits"].status == Status.MISSING
    assert "user.max_user_namespaces=65536" in seen["namespaces"].remedy


def test_a_place_below_a_parent_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    seen = examine(tmp_path / "a/b/state", "--no-trial")
    assert (seen.exit_code, seen["state directory"].status) == (0, Status.OK)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("below", ["file", "file/state", "loop", "long" * 100])
def test_a_place_where_no_directory_can_be_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    seen = examine(tmp_path / below)
    assert seen.exit_code == 1
    assert seen["state directory"].status == Status.MISSING
    assert below in seen["state directory"].found
    assert "--state-dir" in seen["state directory"].remedy


def test_a_read_only_place_is_named(tmp_path: Path) -> None:
    seen = on_worse_machine(f"mount -t tmpfs -o ro none '{tmp_path}'", tmp_path / "state")
    assert seen.exit_code == 1
    assert "Read-only" in seen["state directory"].found


def test_a_place_open_to_others_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    seen = examine(tmp_path / "state", "--no-trial")
    assert (seen.exit_code, seen["state directory"].status) == (0, Status.WARNING)
    assert "chmod 700" in seen["state directory"].remedy


def test_a_file_system_that_cannot_be_idmapped_is_named(tmp_path: Path) -> None:
    for name in ("l", "u", "w", "m"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/l,upperdir={tmp_path}/u,workdir={tmp_path}/w"
    seen = on_worse_machine(f"mount -t overlay -o '{options}' none '{tmp_path}/m'", tmp_path / "m/state")
    assert seen.exit_code == 1
    assert seen["idmap of the state"].status == Status.MISSING
    assert "on overlay" in seen["idmap of the state"].found
    assert seen["idmap of /usr"].status == Status.OK


def test_a_covered_proc_as_in_a_container_is_named(tmp_path: Path) -> None:
    seen = on_worse_machine("mount -t tmpfs none /proc/bus", tmp_path)
    assert seen.exit_code == 1
    assert "mount /proc" in seen["mounts inside"].found
    assert "container" in seen["mounts inside"].remedy


def test_no_control_groups_are_named(tmp_path: Path) -> None:
    seen = on_worse_machine("umount --recursive /sys/fs/cgroup", tmp_path)
    assert seen.exit_code == 1
    assert seen["control groups"].found == "no control groups are mounted"
    assert seen["setting limits"].status == Status.MISSING


def test_read_only_control_groups_are_named(tmp_path: Path) -> None:
    script = "for m in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do mount -o remount,bind,ro $m; done"
    seen = on_worse_machine(script, tmp_path)
    assert seen.exit_code == 1
    assert seen["control groups"].status == Status.OK
    assert "Read-only" in seen["setting limits"].found


def test_without_mkfs_sandboxes_run_but_quotas_are_not_enforced(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("losetup", "mount", "umount", "rm"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or program)
    seen = examine(tmp_path / "state", PATH=str(tmp_path / "bin"))
    assert seen.exit_code == 0, seen.report
    assert seen["programs"].status == seen["disk quotas"].status == Status.WARNING
    assert "mkfs.btrfs" in seen["programs"].found and "btrfs-progs" in seen["programs"].remedy
    assert seen["a sandbox"].status == Status.OK


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A pool that nobody has open."""
    PoolStorage(tmp_path / "state", size=MIN_POOL).close()
    file = tmp_path / "state/pool.btrfs"
    wait_until_detached(file)
    return file


def wait_until_detached(file: Path) -> None:
    while find_device(file):
        time.sleep(0.01)


def test_a_sound_pool_is_left_as_it_is(pool: Path) -> None:
    before = pool.stat().st_mtime_ns
    seen = examine(pool.parent)
    assert (seen.exit_code, seen["pool"].status) == (0, Status.OK), seen.report
    assert "not in use" in seen["pool"].found
    assert pool.stat().st_mtime_ns == before


def test_a_pool_in_use_is_left_alone(pool: Path) -> None:
    storage = PoolStorage(pool.parent)
    seen = examine(pool.parent, "--no-trial")
    storage.close()
    wait_until_detached(pool)
    assert (seen.exit_code, seen["pool"].status) == (0, Status.OK)
    assert "in use" in seen["pool"].found


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(params=["closed", "killed"])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A database with a key in it, as a server leaves it that ends or is killed."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    child = os.fork()
    if child == 0:
        store = SqliteStore(state)
        kept.at_once(Keys(store.keys).create("mine"))
        if request.param == "closed":
            store.close()
        os._exit(0)
    os.waitpid(child, 0)
    return state / NAME


def test_a_sound_database_is_left_as_it_is(database: Path) -> None:
    before = files_in(database.parent)
    seen = examine(database.parent, "--no-trial")
    assert (seen["database"].status, seen["database"].found) == (Status.OK, f"{database}, whole")
    after = files_in(database.parent)
    assert after[str(database)] == before[str(database)]
    with closing(SqliteStore(database.parent)) as store:
        assert [key.info.name for key in kept.at_once(store.keys.all())] == ["mine"]


def test_a_database_that_a_server_has_open_is_looked_at_while_that_goes_on(database: Path) -> None:
    with closing(SqliteStore(database.parent)) as store:
        assert examine(database.parent, "--no-trial")["database"].status is Status.OK
        kept.at_once(Keys(store.keys).create("other"))
        assert len(kept.at_once(store.keys.all())) == 2


def test_without_a_database_there_is_none_afterwards(tmp_path: Path) -> None:
    assert examine(tmp_path, "--no-trial")["database"].found.startswith("none yet")
    assert not list(tmp_path.iterdir())


def damage_in_the_middle(database: Path) -> None:
    SqliteStore(database.parent).close()
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def scribble(database: Path) -> None:
    for file in database.parent.glob(f"{NAME}*"):
        file.unlink()
    database.write_bytes(b"not a database at all" * 1000)


def make_newer(database: Path) -> None:
    with closing(SqliteStore(database.parent)) as store:
        store.database.execute(f"PRAGMA user_version={len(MIGRATIONS) + 7}")


@pytest.mark.parametrize(
    ("spoil", "says", "remedy"),
    [
        (make_newer, f"its tables are of version {len(MIGRATIONS) + 7}", "a later one"),
        (damage_in_the_middle, "cannot be used", "backup"),
        (scribble, "not a database", "backup"),
    ],
    ids=["newer", "damaged", "noise"],
)
def test_a_database_that_no_server_could_use_is_named_and_not_touched(
    database: Path, spoil: Callable[[Path], None], says: str, remedy: str
) -> None:
    spoil(database)
    before = database.read_bytes()
    seen = examine(database.parent)
    assert (seen.exit_code, seen["database"].status) == (1, Status.MISSING)
    assert says in seen["database"].found and str(database) in seen["database"].found
    assert remedy in seen["database"].remedy
    assert "database" in seen.report.summary
    assert database.read_bytes() == before


def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    """Nothing is the matter with overlays, though one cannot be made. Root has some blocks in reserve there."""
    image, state = tmp_path / "image", tmp_path / "state"
    state.mkdir()
    with image.open("wb") as file:
        file.truncate(24 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    fill = f"setpriv --bounding-set=-sys_resource cat /dev/zero >{state}/filler 2>/dev/null || :"
    seen = on_worse_machine(f"mount -o loop {image} {state}; {fill}", state)
    assert seen["mounts inside"].status is Status.UNKNOWN
    for finding in seen.report.findings:
        assert "overlay" not in finding.remedy, finding
        if "No space" in finding.found or finding.name in ("mounts inside", "free space"):
            assert finding.remedy.startswith("Free "), finding


def test_what_the_last_server_found_is_shown(tmp_path: Path) -> None:
    assert examine(tmp_path, "--no-trial")["last start"].found == "none yet"
    one, two = SandboxId("one"), SandboxId("two")
    write_note(Inherited(running=(one,), ended=(two,), removed=(two,)), tmp_path)
    seen = examine(tmp_path, "--no-trial")["last start"]
    assert seen.status is Status.OK and seen.found.endswith(": 1 running, 1 ended, 1 removed")
    write_note(
        Inherited(
            running=(one,),
            damaged=(two,),
            restored=tuple(SandboxId(f"box-{number}") for number in range(1_000)),
            set_aside=("lost.2",),
            failed=(one,),
            problems=("Undo one: busy",),
        ),
        tmp_path,
    )
    assert (tmp_path / "found").stat().st_size < 10_000
    seen = examine(tmp_path, "--no-trial")["last start"]
    assert seen.status is Status.WARNING
    for said in ("damaged: two", "box-9 and 990 more", "set aside: lost.2", "problems: Undo one: busy"):
        assert said in seen.found
    assert "atoll ls --lost" in seen.remedy and "atoll inspect" in seen.remedy
    (tmp_path / "found").write_bytes(b"\xff{")
    assert examine(tmp_path, "--no-trial")["last start"].status is Status.UNKNOWN


def test_a_damaged_pool_is_named_and_not_touched(pool: Path) -> None:
    with pool.open("r+b") as file:
        file.write(b"x" * 2**21)
    seen = examine(pool.parent)
    assert (seen.exit_code, seen["pool"].status) == (1, Status.MISSING)
    assert str(pool) in seen["pool"].found and "btrfs check" in seen["pool"].remedy
    with pool.open("rb") as file:
        assert file.read(2**21) == b"x" * 2**21


def test_a_pool_cut_short_is_named(pool: Path) -> None:
    os.truncate(pool, 2**20)
    seen = examine(pool.parent)
    assert (seen.exit_code, seen["pool"].status) == (1, Status.MISSING)


def test_a_pool_attached_and_not_mounted_is_named_with_the_way_to_give_it_back(pool: Path) -> None:
    device = attach(pool)
    seen = examine(pool.parent, "--no-trial")
    subprocess.run(["losetup", "--detach", device], check=True)
    assert (seen.exit_code, seen["pool"].status) == (0, Status.WARNING)
    assert f"losetup --detach {device}" in seen["pool"].remedy
    wait_until_detached(pool)


def test_a_device_whose_pool_was_removed_is_named(pool: Path, tmp_path: Path) -> None:
    device = attach(pool)
    pool.unlink()
    seen = examine(tmp_path / "other", "--no-trial")
    subprocess.run(["losetup", "--detach", device], check=True)
    assert (seen.exit_code, seen["loop devices"].status) == (0, Status.WARNING)
    assert device in seen["loop devices"].remedy


def attach(file: Path) -> str:
    with machine_lock():
        shown = subprocess.run(["losetup", "--find", "--show", file], capture_output=True, text=True, check=True)
        return shown.stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_in_the_middle_of_a_trial_it_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    program = subprocess.Popen([*DOCTOR, "--state-dir", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while program.poll() is None and not list(tmp_path.glob(".atoll-doctor-*/run/nursery.log")):
        time.sleep(0.005)
    program.send_signal(number)
    _, said = program.communicate()
    assert program.returncode in (128 + number, 1, 0)  # 0: it was done before it was told
    assert b"Traceback" not in said


def on_terminal(*options: str, **env: str) -> str:
    """What it prints to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")} | env
    command = ["sh", "-c", 'stty cols 80 -opost; exec "$@"', "sh", *DOCTOR, "--no-trial", *options]
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env | {"TERM": "xterm"})
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65_536):
            chunks.append(chunk)
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert program.wait() == 0
    return b"".join(chunks).decode()


def test_people_get_colour_on_a_terminal_unless_they_want_none() -> None:
    assert "\x1b[32m ✓\x1b[0m root" in on_terminal()
    plain = on_terminal(NO_COLOR="1")
    assert "\x1b" not in plain and " ✓ root" in plain


def test_a_remedy_stands_below_what_needs_it_and_no_line_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    lines = on_terminal("--state-dir", str(tmp_path / "state"), NO_COLOR="1").splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(" ! state directory"))
    assert any("→ Close it" in line for line in lines[at : at + 5])
    assert all(len(line) <= 80 for line in lines)


def test_a_pipe_gets_neither_colour_nor_more_than_its_encoding_can_hold(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [*DOCTOR, "--no-trial", "--state-dir", f"{tmp_path}/\x1bé\udcff"]
    ran = subprocess.run(command, capture_output=True, env=env)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"\x1b" not in ran.stdout and b" + root" in ran.stdout


def test_a_reader_that_goes_away_is_no_disaster() -> None:
    ran = subprocess.run(f"{' '.join(DOCTOR)} --no-trial | head -1", shell=True, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("Machine\n", "")


def test_the_program_tells_its_version_and_its_verbs() -> None:
    atoll = Path(sys.executable).with_name("atoll")
    assert subprocess.run([atoll, "--version"], capture_output=True, text=True).stdout.startswith("atoll, version 0.")
    assert "doctor" in subprocess.run([atoll, "--help"], capture_output=True, text=True).stdout


def test_a_probe_that_dies_or_fails_is_told_apart() -> None:
    def die(inside: Inside) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(inside: Inside) -> None:
        inside.step = "open the moon"
        os.open("/no/moon", os.O_RDONLY)

    with probe_child(Namespace(0), die) as child, pytest.raises(ProbeFailed, match="ended before"):
        child.result()
    with probe_child(Namespace(0), fail) as child, pytest.raises(ProbeFailed, match="open the moon: No such file"):
        child.result()
