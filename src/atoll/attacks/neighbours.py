"""Another sandbox's files, sockets, memory, processes and locks."""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Family

_WAIT = """
print("READY", flush=True)
sys.stdin.read()
"""

SECRET_KEEPER = (
    """
import sys
with open("/workspace/secret", "w") as file:
    file.write("the neighbour's")
"""
    + _WAIT
)
# Where the process that makes sandboxes keeps their disks, as seen from its root.
FILES = """
import glob
found = glob.glob("/../state/disks/*/*/workspace/secret")
print("BREACH " + open(found[0]).read() if found else "HELD no such file")
"""

LISTENER = (
    """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0atoll-victim")
listener.listen()
"""
    + _WAIT
)
SOCKET = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect("\\0atoll-victim")
    print("BREACH it took the connection")
except OSError as cause:
    print("HELD", cause)
"""

_SHARED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
KEY, CREATE, REMOVE = 0x41544F4C, 0o1000, 0
"""
MEMORY_OWNER = (
    _SHARED
    + """
segment = libc.shmget(KEY, ctypes.c_size_t(4096), CREATE | 0o666)
"""
    + _WAIT
    + "libc.shmctl(segment, REMOVE, None)"
)
MEMORY = (
    _SHARED
    + """
segment = libc.shmget(KEY, ctypes.c_size_t(0), 0)
print("HELD " + os.strerror(ctypes.get_errno()) if segment < 0 else "BREACH its shared memory is ours")
"""
)

SITTING_DUCK = "import sys  # sitting duck\n" + _WAIT
_FIND = """
import os

def is_duck(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"sitting" + b" duck" in file.read()
    except OSError:
        return False

ducks = [int(name) for name in os.listdir("/proc") if name.isdigit() and is_duck(name)]
"""
PROCESSES = _FIND + 'print("BREACH" if ducks else "HELD", ducks)\n'
KILL = (
    _FIND
    + """
try:
    for pid in ducks:
        os.kill(pid, 9)
    print("BREACH" if ducks else "HELD", ducks)
except OSError as cause:
    print("HELD", cause)
"""
)

# Read-only for everybody, but if two sandboxes see the same inode, its locks are theirs in common.
_LOCKABLE = """
import fcntl, os, sys
files = {path: os.open(path, os.O_RDONLY) for path in ("/dev/null", "/dev", "/sys/firmware", "/usr")}
"""
LOCK_HOLDER = (
    _LOCKABLE
    + """
for fd in files.values():
    fcntl.flock(fd, fcntl.LOCK_EX)
"""
    + _WAIT
)
LOCK = (
    _LOCKABLE
    + """
def is_held(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True

held = [path for path, fd in files.items() if is_held(fd)]
print("BREACH" if held else "HELD", held)
"""
)


# Here the neighbour is the aggressor, who takes until there is none left.
_USED_UP = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)

def take():
    return {take} >= 0
"""
_TAKE_ALL = "while take(): pass"
_TAKE_ONE = 'print("HELD there is one for us" if take() else "BREACH " + os.strerror(ctypes.get_errno()))'
INSTANCE = "libc.inotify_init()"
QUEUE = 'libc.mq_open(b"/%s" % os.urandom(8).hex().encode(), os.O_CREAT | os.O_RDWR, 0o600, None)'
SIGNAL = "signal.pthread_sigmask(signal.SIG_BLOCK, [40]) and 0 or libc.sigqueue(os.getpid(), 40, None)"


def _use_up(name: str, take: str) -> Attack:
    taker = _USED_UP.format(take=take)
    return _attack(name, taker + _TAKE_ONE, taker + _TAKE_ALL + _WAIT, Defence.NAMESPACE_OWNER)


def _attack(name: str, payload: str, victim: str, *defences: Defence) -> Attack:
    return Attack(name=name, family=Family.NEIGHBOURS, defences=defences, payload=payload, victim=victim)


ATTACKS = (
    _attack("files-of-a-neighbour", FILES, SECRET_KEEPER, Defence.OLD_ROOT_DETACHED, Defence.USER_NAMESPACE),
    _attack("socket-of-a-neighbour", SOCKET, LISTENER, Defence.NETWORK_NAMESPACE),
    _attack("shared-memory-of-a-neighbour", MEMORY, MEMORY_OWNER, Defence.IPC_NAMESPACE),
    _attack("processes-of-a-neighbour", PROCESSES, SITTING_DUCK, Defence.PID_NAMESPACE),
    _attack("kill-a-neighbours-process", KILL, SITTING_DUCK, Defence.PID_NAMESPACE, Defence.UID_RANGE),
    _use_up("use-up-inotify-instances", INSTANCE),
    _use_up("use-up-message-queues", QUEUE),
    _use_up("use-up-queued-signals", SIGNAL),
    _attack("lock-what-a-neighbour-uses", LOCK, LOCK_HOLDER, Defence.OWN_DEV),
)
