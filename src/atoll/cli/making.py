"""The making of a sandbox: options that verbs share which may make one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any, TypeVar

import click
import msgspec

from atoll.cli.options import parse_pair
from atoll.client_sync.sandbox import SandboxArguments
from atoll.protocol.limits import SIZES, parse_limits

Verb = TypeVar("Verb", bound=Callable[..., Any])

LIMITS = (
    click.option("--size", type=click.Choice(sorted(SIZES)), help="All limits by one name; single ones count more."),
    click.option("--cpus", metavar="N", help="How many cpus it may use, such as 2, 0.5 or 1/4."),
    click.option("--memory", metavar="SIZE", help="How much memory, such as 512MiB or 4GB."),
    click.option("--disk", metavar="SIZE", help="How large its disk may grow."),
    click.option("--pids", type=int, metavar="N", help="How many processes and threads."),
)
TREATMENT = (
    click.option("--sleep-after", metavar="TIME", help="Put it to sleep when nobody used it for so long: 30s, 5m, 1h."),
    click.option("--stop-after", metavar="TIME", help="Stop it when it has slept for so long; files are kept."),
    click.option("--ttl", metavar="TIME", help="Destroy it so long after it was made."),
)
OPTIONS = (
    click.option("--image", metavar="NAME", help="What the sandbox is made of; the host's own /usr if not given."),
    *LIMITS,
    click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="What it is found by."),
    click.option("--keep-alive", is_flag=True, help="Never put it to sleep by itself."),
    *TREATMENT,
    click.option("--strict", is_flag=True, help="Fail if there is such a sandbox with other options."),
)
NAMES = "image size cpus memory disk pids label keep_alive sleep_after stop_after ttl strict".split()


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a sandbox as they were written on the command line; what was not is None, or empty."""

    image: str | None
    size: str | None
    cpus: str | None
    memory: str | None
    disk: str | None
    pids: int | None
    label: tuple[tuple[str, str], ...]
    keep_alive: bool
    sleep_after: str | None
    stop_after: str | None
    ttl: str | None
    strict: bool

    def arguments(
        self, url: str | None, api_key: str | None, env: tuple[tuple[str, str], ...] = ()
    ) -> SandboxArguments:
        """Of `get_sandbox`."""
        given = SandboxArguments(
            url=url,
            api_key=api_key,
            env=dict(env),
            image=self.image,
            limits=given_limits(self.size, self.cpus, self.memory, self.disk, self.pids) or None,
            labels=dict(self.label),
            keep_alive=self.keep_alive,
            stop_after=self.stop_after,
            ttl=self.ttl,
            strict=self.strict,
        )
        if self.sleep_after is not None:
            given["sleep_after"] = self.sleep_after
        return given


def given_limits(
    size: str | None, cpus: str | None, memory: str | None, disk: str | None, pids: int | None
) -> dict[str, Any]:
    """The limits of a size, if one was named, and then the single ones."""
    whole = asdict(parse_limits(size)) if size else {}
    single = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids}
    return whole | {name: value for name, value in single.items() if value is not None}


def making_options(verb: Verb) -> Verb:
    """All of them, which the verb gets as one `making`."""

    @wraps(verb)
    def collecting(*words: Any, **options: Any) -> Any:
        return verb(*words, making=Making(**{name: options.pop(name) for name in NAMES}), **options)

    return with_options(collecting, OPTIONS)  # type: ignore[return-value]


def with_options(verb: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """In this order in its help."""
    for option in reversed(options):
        verb = option(verb)
    return verb
