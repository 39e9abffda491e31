"""Sandboxes by their id."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from atoll.client import sessions
from atoll.client.commands import Environment
from atoll.client.events import AsyncConnectionStream, AsyncEventStream
from atoll.client.handles import Handle
from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.plumbing.server import Server, find_server
from atoll.client.ports import AsyncPorts
from atoll.client.promised import AsyncPromised
from atoll.client.sessions import AsyncInSession, AsyncSession
from atoll.protocol.arguments import (
    MAX_NUMBER,
    Directory,
    check_flag,
    check_lasting_variables,
    check_number_seen,
    to_whole,
    wrong_argument,
)
from atoll.protocol.durations import Duration, parse_duration
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.limits import Limits, parse_limits
from atoll.protocol.network import Connection, ConnectionList, NetworkChange, NetworkPolicy, parse_network
from atoll.protocol.sandboxes import (
    DEFAULT_IMAGE,
    SANDBOXES_PER_PAGE,
    EventList,
    LimitChanges,
    SandboxEvent,
    SandboxInfo,
    SandboxList,
    SandboxOptions,
    SandboxState,
    SleepRequest,
    UpkeepChanges,
    check_labels,
    parse_lasting,
)
from atoll.protocol.sessions import DEFAULT_DIRECTORY, SessionInfo
from atoll.values.promised import not_available_yet

DEFAULT_SLEEP_AFTER = "10m"
LimitsGiven = Limits | str | dict[str, Any]
NetworkGiven = NetworkPolicy | Literal["public", "none"] | dict[str, list[str]]
State = Literal["running", "frozen", "stopped"]


def get_async_sandbox(
    id: str,
    *,
    image: str | None = None,
    sleep_after: Duration = DEFAULT_SLEEP_AFTER,
    stop_after: Duration | None = None,
    keep_alive: bool = False,
    env: Mapping[str, str] | None = None,
    limits: LimitsGiven | None = None,
    network: NetworkGiven | None = None,
    secrets: object = None,
    labels: Mapping[str, str] | None = None,
    ttl: Duration | None = None,
    snapshot: object = None,
    create: bool = True,
    strict: bool = False,
    url: str | None = None,
    api_key: str | None = None,
) -> AsyncSandbox:
    """The sandbox with this id. Returns at once; the first operation that needs it makes it, or wakes it.

    What only asks (`status`, `events`, `list_*`, `get_*`, `kill_*`) makes none: SANDBOX_NOT_FOUND. With `create=False`
    nothing does.

    The same id always reaches the same sandbox, from any process and any client. Options count whenever this object
    makes it, also after somebody else destroyed it. One that exists keeps what it has: what differs is told by an
    OptionsIgnoredWarning, or with `strict` is SANDBOX_CONFLICT. It is destroyed `ttl` after it was made, whatever it is
    doing. `url` and `api_key` default to ATOLL_URL and ATOLL_API_KEY; without either, the server of this machine is
    used, and started if it does not run.
    """
    _refuse_what_comes_later(
        secrets=secrets,
        snapshot=snapshot,
    )
    options = SandboxOptions(
        image=None if image is None else _checked_image(image),
        limits=_sendable(limits),
        env=_checked_values(env) or None,
        labels=check_labels({} if labels is None else labels) or None,
        sleep_after=_seconds_unless_default(sleep_after),
        keep_alive=check_flag(keep_alive, "keep_alive") or None,
        stop_after=parse_lasting("stop_after", stop_after),
        ttl=parse_lasting("ttl", ttl),
        network=None if network is None else _network(network),
        strict=check_flag(strict, "strict"),
    )
    given = None if options == SandboxOptions() else options
    if not check_flag(create, "create") and given:
        remedy = "Leave out the options, which count when a sandbox is made; or create=False."
        raise wrong_argument("create", create, "makes no sandbox that these options could be for", remedy)
    return AsyncSandbox(RemoteSandbox(find_server(url, api_key), parse_sandbox_id(id), given, attaches_only=not create))


class SandboxArguments(TypedDict, total=False):
    """The arguments of `get_async_sandbox` besides the id."""

    image: str | None
    sleep_after: Duration
    stop_after: Duration | None
    keep_alive: bool
    env: Mapping[str, str] | None
    limits: LimitsGiven | None
    network: NetworkGiven | None
    secrets: object
    labels: Mapping[str, str] | None
    ttl: Duration | None
    snapshot: object
    create: bool
    strict: bool
    url: str | None
    api_key: str | None


def temporary_async_sandbox(id: str | None = None, **options: Unpack[SandboxArguments]) -> AsyncSandbox:
    """A sandbox for the length of a block, which destroys it.

        async with temporary_async_sandbox() as sandbox:
            print(await sandbox.exec("echo hello"))

    It takes the options of `get_async_sandbox`.
    """
    sandbox = get_async_sandbox(f"temporary-{secrets.token_hex(5)}" if id is None else id, **options)
    sandbox.is_temporary = True
    return sandbox


async def list_sandboxes_async(
    *,
    labels: Mapping[str, str] | None = None,
    state: SandboxState | State | None = None,
    limit: SupportsIndex | None = None,
    after: str | None = None,
    usage: bool = False,
    url: str | None = None,
    api_key: str | None = None,
) -> list[SandboxInfo]:
    """The sandboxes of a server that have all these labels and are in this state, by id.

    All of them, or `limit` at most, from the first id after `after` on. What each uses of cpu, memory and disk takes
    the server a moment, and is there only with `usage`.
    """
    wanted = check_labels({} if labels is None else labels)
    conditions = [f"label={quote(f'{name}={value}')}" for name, value in wanted.items()]
    if state is not None:
        conditions.append(f"state={_checked_state(state).value}")
    if check_flag(usage, "usage"):
        conditions.append("usage=true")
    most = MAX_NUMBER if limit is None else _checked_limit(limit)
    place = "" if after is None else parse_sandbox_id(after)
    return await _walk_pages(find_server(url, api_key), conditions, most, place)


async def _walk_pages(server: Server, conditions: list[str], most: int, place: str) -> list[SandboxInfo]:
    found: list[SandboxInfo] = []
    while len(found) < most:
        left = most - len(found)
        page = [f"limit={left}"] if left < SANDBOXES_PER_PAGE else []
        start = [f"after={place}"] if place else []
        query = "&".join((*conditions, *page, *start))
        answer = await server.ask("GET", f"/v1/sandboxes{'?' if query else ''}{query}", SandboxList)
        found += answer.sandboxes
        if answer.next is None or answer.next <= place:  # a place that is no further on would never end
            break
        place = answer.next
    return found


class AsyncSandbox(Handle, AsyncInSession, AsyncPorts, AsyncPromised):
    """An isolated Linux computer. `exec` and `exec_stream` use its default session, a shell that keeps its state.

    As a context manager it releases its connections at the end of the block, and if it came from
    `temporary_async_sandbox` it is destroyed.
    """

    is_temporary = False

    @property
    def id(self) -> str:
        return self._sandbox.id

    async def status(self) -> SandboxInfo:
        """Its state, since when and why; image, isolation, limits, and what it uses.

        To ask makes no sandbox: SANDBOX_NOT_FOUND says that there is none.
        """
        return await self._sandbox.ask_server(SandboxInfo)

    async def destroy(self) -> None:
        """Everything of it is gone: processes, files, sessions. Twice is fine."""
        await self._sandbox.destroy()

    async def set_env_vars(self, env: Environment) -> None:
        """Variables of the sandbox and its default session from now on. None as a value takes one away.

        Another session keeps what it was given itself, or has exported or unset, and takes the rest.
        A name is one that a shell can have: letters, digits and underscores, no digit first.
        """
        check_environment(env)
        await self._sandbox.request("PATCH", SandboxInfo, path="/env", body=check_lasting_variables(env))

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Its labels from now on, instead of those it had."""
        await self._sandbox.request("PUT", SandboxInfo, path="/labels", body=check_labels(labels))

    async def sleep(self, stop: bool = False) -> None:
        """Let it stand still, memory kept, until the next operation; or with `stop` end all that runs in it.

        Background processes stand still with it. While anybody waits for an operation, or follows one, it stays awake,
        and falls asleep after the last; with `stop` these end at once, and are AGENT_LOST. One that was stopped keeps
        its files, and starts again without its processes.
        """
        await self._sandbox.request(
            "POST", SandboxInfo, path="/sleep", body=SleepRequest(stop=check_flag(stop, "stop"))
        )

    async def wake(self) -> None:
        """Wake it, start it, or make it. Every operation does that by itself; this one does nothing else."""
        await self._sandbox.request("POST", SandboxInfo, path="/wake")

    async def set_sleep_after(self, sleep_after: Duration) -> None:
        """Sets for how long nobody must use it before it is put to sleep: seconds, or "30s", "5m", "1h"."""
        await self._change(UpkeepChanges(sleep_after=parse_duration(sleep_after, "sleep_after")))

    async def set_keep_alive(self, keep_alive: bool) -> None:
        """Keeps it awake however long nobody uses it, or no longer."""
        await self._change(UpkeepChanges(keep_alive=check_flag(keep_alive, "keep_alive")))

    async def set_stop_after(self, stop_after: Duration | None) -> None:
        """Sets for how long it sleeps before it is stopped, which frees its memory; None for ever."""
        await self._change(UpkeepChanges(stop_after=parse_lasting("stop_after", stop_after)))

    async def set_ttl(self, ttl: Duration | None) -> None:
        """Sets for how long it lives, from when it was made; None for ever. One that is older is destroyed at once."""
        await self._change(UpkeepChanges(ttl=parse_lasting("ttl", ttl)))

    async def set_limits(
        self,
        limits: LimitsGiven | None = None,
        *,
        cpus: float | str | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
    ) -> None:
        """Sets how much of the machine it may use from now on, also while it runs: all limits, single ones, or both.

        What is not given stays as it is. LIMIT_IN_USE, and nothing is changed, where more memory or disk is in use.
        """
        single = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids}
        await self._sandbox.request("PATCH", SandboxInfo, path="/limits", body=_limit_changes(limits, single))

    async def set_network(self, network: NetworkGiven) -> None:
        """Sets what it may reach: "public", "none", or a NetworkPolicy. What is open and not allowed ends."""
        change = NetworkChange(network=_network(network))
        await self._sandbox.request("PUT", SandboxInfo, path="/network", body=change)

    async def connections(self) -> list[Connection]:
        """The latest that it tried to reach: name, address, port, whether that was allowed and by which rule."""
        return (await self._sandbox.ask_server(ConnectionList, "/connections")).connections

    def follow_connections(self) -> AsyncConnectionStream:
        """Its connections as an iterator that goes on as they begin, change and end."""
        return AsyncConnectionStream(self._sandbox)

    async def _change(self, changes: UpkeepChanges) -> None:
        await self._sandbox.request("PATCH", SandboxInfo, body=changes)

    async def events(self, since: SupportsIndex | None = None) -> list[SandboxEvent]:
        """Its timeline: what happened, when, why, who asked. `since` is the number of the last event already seen."""
        found = await self._sandbox.ask_server(EventList, f"/events?since={check_number_seen(since)}")
        return found.events

    def follow_events(self, since: SupportsIndex | None = None) -> AsyncEventStream:
        """Its timeline as an iterator that goes on as things happen."""
        return AsyncEventStream(self._sandbox, check_number_seen(since))

    async def create_session(
        self,
        id: str | None = None,
        *,
        env: Environment | None = None,
        cwd: Directory = DEFAULT_DIRECTORY,
        name: str | None = None,
        exist_ok: bool = False,
    ) -> AsyncSession:
        """Another shell, with its own directory, variables, functions and options.

        `name` is for people, and in `list_sessions`. With `exist_ok` a session of this id that exists is no error, and
        stays as it is.
        """
        return await sessions.create_session(self._sandbox, id, env, cwd, name, exist_ok)

    async def get_session(self, id: str) -> AsyncSession:
        """The session with this id, which must exist."""
        return await sessions.get_session(self._sandbox, id)

    async def list_sessions(self) -> list[SessionInfo]:
        """Its sessions: the default one, and those that were created and not deleted."""
        return await sessions.list_sessions(self._sandbox)

    async def delete_session(self, id: str) -> None:
        """End its shell and what runs in it. Background processes live on."""
        await sessions.delete_session(self._sandbox, id)

    async def aclose(self) -> None:
        """Release its connections. It stays usable."""
        self._sandbox.server.transport.close_idle()

    close = aclose

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        try:
            if self.is_temporary:
                await self.destroy()
                self._sandbox.end()
        except AtollError as failure:
            if problem is None:
                raise
            problem.add_note(f"Besides, sandbox {self.id!r} could not be destroyed: {failure}")
        finally:
            await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self.id!r} at {self._sandbox.server.address}>"


def _refuse_what_comes_later(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise not_available_yet(f"{name}=")


def _checked_image(image: object) -> str:
    if not isinstance(image, str) or not image:
        remedy = f'Give a name, such as "{DEFAULT_IMAGE}", or None for that.'
        raise wrong_argument("image", image, "is not the name of an image", remedy, ErrorCode.INVALID_IMAGE_NAME)
    return image


def _checked_values(env: Mapping[str, str] | None) -> dict[str, str]:
    variables = check_lasting_variables(env)
    for name, value in variables.items():
        if value is None:
            message = f"{name}=None is no value for a variable of a new sandbox"
            remedy = "Give text, or leave it out; set_env_vars() takes away those that every sandbox has."
            raise error(ErrorCode.INVALID_ENVIRONMENT, message, remedy=remedy, name=name)
    return variables


def _sendable(limits: LimitsGiven | None) -> str | dict[str, Any] | None:
    if limits is None:
        return None
    checked = parse_limits(limits)
    if isinstance(limits, str):
        return limits
    fields = dict(msgspec.to_builtins(checked))
    return {name: fields[name] for name in limits} if isinstance(limits, dict) else fields


def _network(network: NetworkGiven | None) -> dict[str, Any]:
    policy = parse_network(network)
    return {"allow": policy.allow, "deny": policy.deny}


def _limit_changes(limits: LimitsGiven | None, single: Mapping[str, object]) -> LimitChanges:
    given: dict[str, Any] = {name: value for name, value in single.items() if value is not None}
    all_limits = _sendable(limits)
    whole = {"size": all_limits} if isinstance(all_limits, str) else all_limits or {}
    changes = LimitChanges(**{**whole, **given})
    changes.applied_to(Limits())  # which says what cannot be
    if changes == LimitChanges():
        remedy = 'Give cpus=, memory=, disk= or pids=, or the name of a size, such as "standard-1".'
        raise error(ErrorCode.INVALID_LIMITS, "no limit was given that is to be set", remedy=remedy, field="limits")
    return changes


def _seconds_unless_default(sleep_after: Duration) -> float | None:
    seconds = parse_duration(sleep_after, "sleep_after")
    return None if seconds == parse_duration(DEFAULT_SLEEP_AFTER) else seconds


def _checked_state(state: str) -> SandboxState:
    try:
        return SandboxState(state)
    except ValueError as cause:
        remedy = f"Use one of {', '.join(known.value for known in SandboxState)}."
        raise wrong_argument("state", state, "is not a state of sandboxes", remedy) from cause


def _checked_limit(limit: SupportsIndex) -> int:
    number = to_whole(limit)
    if number is None or not 1 <= number <= MAX_NUMBER:
        raise wrong_argument("limit", limit, "is no number of sandboxes", "Give 1 or more, or None for all.")
    return number
