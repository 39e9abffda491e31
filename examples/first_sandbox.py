"""A first sandbox: shell, Python, state that is kept, output as it comes, and what breaking it costs.

`make run` runs this with a server of its own, which leaves nothing behind. Run by itself it uses this machine's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll import AtollError, Sandbox, temporary_sandbox

FIBONACCI = """
a, b = 0, 1
while a < 100:
    print(a, end=" ")
    a, b = b, a + b
"""


def main() -> None:
    with timed("to start a server in the background, and to make a sandbox with it"):
        sandbox = temporary_sandbox("first-sandbox")
        sandbox.exec("true")
    with sandbox:
        use(sandbox)
        break_it(sandbox)
    with timed("for another sandbox, from nothing to its result and gone again"), temporary_sandbox() as another:
        print(another.exec("echo nobody has been here: $(ls -A | wc -l) files").stdout, end="")
    is_there = "is still there" if Path("/usr/bin/python3").exists() else "is gone, and should not be"
    print(f"Both are destroyed. This machine's own /usr/bin/python3 {is_there}.")


def use(sandbox: Sandbox) -> None:
    with timed("for a line of shell"):
        print(sandbox.exec("echo $(id -un)@$(hostname) in $PWD").stdout, end="")

    with timed("for Python, started without a shell"):
        print(sandbox.exec(["python3", "-c", FIBONACCI]).stdout)

    with timed("for two commands in one shell, which keeps directory, variables and functions"):
        sandbox.exec("cd /tmp; who=you; greet() { echo hello $who, from $PWD; }")
        print(sandbox.exec("greet").stdout, end="")

    with timed("for a command that was given 0.2 s; the shell is the same, and knows what it knew"):
        late = sandbox.exec("sleep 60", timeout=0.2)
        print(f"exit code {late.exit_code}, then: {sandbox.exec('greet').stdout}", end="")

    with timed("for output as it comes"):
        for event in sandbox.exec_stream("for n in 3 2 1; do echo $n; sleep 0.1; done; echo gone"):
            print(event.data, end="", flush=True)

    with timed("for a second shell beside the first"):
        build = sandbox.create_session("build", cwd="/usr", env={"CC": "gcc"})
        print(build.exec("echo $CC in $PWD").stdout, end="")


def break_it(sandbox: Sandbox) -> None:
    with timed("for breaking it: whoever is root inside is nobody outside"):
        sandbox.exec("rm -f /usr/bin/python3*")
        result = sandbox.exec("python3 --version")
        print(f"{result.stderr.strip()}: exit code {result.exit_code}")


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{(time.perf_counter() - start) * 1e3:10.1f} ms {what}\n")


if __name__ == "__main__":
    try:
        main()
    except AtollError as problem:
        sys.exit(f"first_sandbox: {problem}")
