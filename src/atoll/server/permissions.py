"""Permissions: what whoever holds a key may do. Every route is asked about here, and nowhere else.

Rules:
1. The question is asked when the route is known, with the id that its handler gets. No path can be written so that it
   means one thing here and another there.
2. A route that says nothing is closed to keys with a scope: it is about all there is, and changes it.
3. A key for some sandboxes sees no others in lists, timelines and live events, and makes none but such: what it makes
   has the labels of the key, and keeps them.
4. A key that only reads makes no sandbox and changes none. What it reads may wake one.
5. Of the frames of a call the kind says whether it reads; it is then sent on as it was understood, so that no agent can
   understand it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.types import Scope

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.kinds import KINDS
from atoll.protocol.messages import decode_call, encode_message
from atoll.server.observer import sight_of
from atoll.store.keys import KeyScope
from atoll.telemetry import counted

if TYPE_CHECKING:
    from atoll.server.api_route import ApiRoute
    from atoll.supervisor.roster import Roster

KEY_SCOPE = "atoll.key_scope"  # of a request, by the gate
ALL = KeyScope()
READING = {str(kind.__struct_config__.tag) for kind in KINDS if not kind.changes}


def permit(route: ApiRoute, scope: Scope) -> None:
    """Raise KEY_NOT_ALLOWED unless the holder of this request's key may do that."""
    from atoll.server.api_route import Reach

    sight, asked = sight_of(scope), key_scope_of(scope)
    sandbox = scope["path_params"].get("id", "")
    sight.operation, sight.changes, sight.sandbox = route.name, route.changes_something, sandbox[:64]
    if route.reach_of_it is Reach.ANYBODY or asked == ALL:
        return
    if asked is None:
        raise error(ErrorCode.INVALID_API_KEY, "this request has no API key", remedy="Send one: `atoll key create`.")
    match route.reach_of_it:
        case Reach.KEY | Reach.FILTERED:
            pass
        case Reach.SANDBOX:
            check_sandbox(asked, sandbox, scope["app"].state.roster)
        case Reach.SERVER:
            if asked.is_limited:
                raise _not_allowed("is for some sandboxes, and this is about all")
    if asked.reads_only and route.changes_something and not route.is_call:
        raise _not_allowed(f"only reads, and {route.name} changes something")


def key_scope_of(scope: Scope) -> KeyScope | None:
    """The scope of the key of whoever asks; None if that is nobody whom we know."""
    found: KeyScope | None = scope[KEY_SCOPE]
    return found


def check_sandbox(asked: KeyScope, sandbox_id: str, roster: Roster) -> None:
    if not asked.is_limited:
        return
    if not asked.allows_id(sandbox_id):
        raise _not_allowed(f"is not for sandbox {sandbox_id!r:.100}")
    labels = None
    with suppress(ValueError):
        labels = roster.labels_of(parse_sandbox_id(sandbox_id))
    if labels is not None and not asked.allows_labels(labels):
        raise _not_allowed(f"is not for sandboxes with the labels of {sandbox_id!r:.100}")


Sees = Callable[[str, Mapping[str, str]], bool]  # a sandbox, by its id and its labels


def sees(scope: Scope) -> Sees:
    """The sight of whoever asks: which sandboxes they see, in what is made of many."""
    asked = key_scope_of(scope)

    def may_see(sandbox_id: str, labels: Mapping[str, str]) -> bool:
        return asked is not None and asked.allows_id(sandbox_id) and asked.allows_labels(labels)

    return may_see


def permitted_call(message: bytes, scope: Scope) -> bytes:
    """A call as it is to be sent to the agent; its kind is what was asked for."""
    kind = kind_of(message)
    sight = sight_of(scope)
    counted.calls.add(kind)
    if kind:
        sight.operation, sight.changes = kind, kind not in READING
    asked = key_scope_of(scope)
    if asked is not None and not asked.reads_only:
        return message
    try:
        call = decode_call(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        remedy = "Use the SDK, or another route."
        raise error(ErrorCode.INVALID_REQUEST, f"the call makes no sense: {cause}", remedy=remedy) from cause
    if call.changes:
        raise _not_allowed(f"only reads, and {call.__struct_config__.tag} changes something")
    return encode_message(call)


class _Kind(msgspec.Struct):
    type: str = ""


_kind_decoder = msgspec.msgpack.Decoder(_Kind)


def kind_of(message: bytes) -> str:
    """For what is counted and logged: whoever wants to be taken for another can."""
    try:
        return _kind_decoder.decode(message).type[:64]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _not_allowed(why: str) -> AtollError:
    return error(
        ErrorCode.KEY_NOT_ALLOWED,
        f"the API key of this request {why}",
        remedy="Use a key that may; `atoll key ls` shows what each is for, and `atoll key create` makes another.",
    )
