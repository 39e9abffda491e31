"""The agent, which is PID 1 and runs as the same user, and ways to more privileges."""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Evidence, Family
from atoll.attacks.system_calls import CALL

KILL = """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
print("HELD the agent is there")
"""

# The agent itself: PID 1, unless a sandbox had no process ids of its own.
SIGNALS = """
import os, signal
for number in range(1, signal.NSIG):
    os.kill(os.getppid(), number)
print("HELD the agent is there")
"""

_LOOK = """
import os, resource
try:
    print("BREACH", {expression})
except OSError as cause:
    print("HELD", cause)
"""

DESCRIPTORS = _LOOK.format(expression='[os.readlink(f"/proc/1/fd/{fd}") for fd in os.listdir("/proc/1/fd")]')
LIMITS = _LOOK.format(
    expression="resource.prlimit(1, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))"
)

_MEMORY = """
try:
    with open("/proc/1/maps") as maps:
        address = next(int(line.partition("-")[0], 16) for line in maps if " rw-p " in line)
    print("BREACH", len({read}), "bytes of the agent's memory")
except OSError as cause:
    print("HELD", cause)
"""
MEMORY = "import os" + _MEMORY.format(read='os.pread(os.open("/proc/1/mem", os.O_RDONLY), 64, address)')

# Attached without stopping it, and let go by our end.
PTRACE = CALL + (
    """
try:
    print("BREACH", call("ptrace", 0x4206, 1, 0, 0))
except OSError as cause:
    print("HELD", cause)
"""
)
READ_BY_SYSTEM_CALL = CALL + (
    """
def read(address):
    buffer = ctypes.create_string_buffer(64)
    ours = struct.pack("QQ", ctypes.addressof(buffer), 64)
    call("process_vm_readv", 1, ours, 1, struct.pack("QQ", address, 64), 1, 0)
    return buffer.raw
"""
    + _MEMORY.format(read="read(address)")
)

SET_USER_ID = """
import os, shutil, subprocess
shutil.copy("/usr/bin/id", "/tmp/id")
os.chmod("/tmp/id", 0o4755)
shown = subprocess.run(["/tmp/id", "-u"], user=1000, group=1000, extra_groups=[], capture_output=True, text=True)
print("BREACH a user became root" if shown.stdout.strip() == "0" else "HELD", shown.stdout, shown.stderr)
"""

# Who may signal PID 1 may signal its forks, and end those that work on files. Every account that there is, but root's.
SIGNAL_AS_ANYBODY = """
import os, pwd, signal
allowed = []
for account in pwd.getpwall():
    if account.pw_uid == 0:
        continue
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setresgid(*[account.pw_gid] * 3)
        os.setresuid(*[account.pw_uid] * 3)
        try:
            os.kill(1, 0)
        except PermissionError:
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        allowed.append(account.pw_name)
print("BREACH" if allowed else "HELD", *allowed)
"""

# While PID 1 waits for an exec it collects no orphans.
BAIT = "/tmp/bait"
LEASE = f"""
import fcntl, os, shutil, signal, time
shutil.copy("/bin/true", "{BAIT}")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
fd = os.open("{BAIT}", os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("READY", flush=True)
signal.sigwait([signal.SIGIO])
orphans, theirs = os.pipe()
if os.fork() == 0:
    if child := os.fork():
        os.write(theirs, b"%d" % child)
    os._exit(0)
os.wait()
orphan, waited = int(os.read(orphans, 20)), time.monotonic()
while os.path.exists(f"/proc/{{orphan}}") and time.monotonic() < waited + 5:
    time.sleep(0.01)
is_there = os.path.exists(f"/proc/{{orphan}}")
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
print("BREACH the agent collects nobody" if is_there else "HELD")
"""


def _attack(name: str, payload: str, *defences: Defence, evidence: Evidence = Evidence.VERDICT) -> Attack:
    return Attack(name=name, family=Family.PROCESSES, defences=defences, payload=payload, evidence=evidence)


ATTACKS = (
    _attack("kill-9-the-agent", KILL, Defence.PID_NAMESPACE, evidence=Evidence.AGENT_LOST),
    _attack("every-signal-to-the-agent", SIGNALS, Defence.PID_NAMESPACE, evidence=Evidence.AGENT_LOST),
    _attack("ptrace-the-agent", PTRACE, Defence.FILTER, Defence.AGENT_UNDUMPABLE, Defence.AGENT_IDS),
    _attack("memory-of-the-agent", MEMORY, Defence.AGENT_UNDUMPABLE, Defence.AGENT_IDS),
    _attack(
        "memory-of-the-agent-by-system-call",
        READ_BY_SYSTEM_CALL,
        Defence.FILTER,
        Defence.AGENT_UNDUMPABLE,
        Defence.AGENT_IDS,
    ),
    _attack("descriptors-of-the-agent", DESCRIPTORS, Defence.AGENT_UNDUMPABLE, Defence.AGENT_IDS),
    _attack("limits-of-the-agent", LIMITS, Defence.AGENT_IDS),
    _attack("signal-the-agent-as-anybody", SIGNAL_AS_ANYBODY, Defence.AGENT_ID_UNUSED),
    _attack("set-user-id-program", SET_USER_ID, Defence.NO_NEW_PRIVILEGES, Defence.NO_SET_USER_ID),
    Attack(
        name="write-lease-on-a-program",
        family=Family.PROCESSES,
        defences=(Defence.SPAWN_GUARD,),
        payload=LEASE,
        bait=BAIT,
    ),
)
