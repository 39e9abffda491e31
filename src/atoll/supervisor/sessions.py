"""Sessions of a sandbox: its agent has them, its timeline says who made and deleted them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.sessions import DeleteSession, ListSessions

if TYPE_CHECKING:
    from atoll.protocol.sessions import CreateSession, SessionInfo
    from atoll.supervisor.actor import Caller, SandboxActor


async def create_session(actor: SandboxActor, call: CreateSession, by: Caller) -> SessionInfo:
    created = await actor.ask(by, call)
    await _note(actor, "session_created", call.session_id, by)
    return created


async def find_session(actor: SandboxActor, session_id: str, by: Caller) -> SessionInfo:
    for session in (await actor.ask(by, ListSessions())).sessions:
        if session.id == session_id:
            return session
    message = f"session {session_id!r} was deleted meanwhile"
    raise error(ErrorCode.SESSION_NOT_FOUND, message, remedy="Create it again.", session_id=session_id)


async def delete_session(actor: SandboxActor, session_id: str, by: Caller) -> None:
    await actor.ask(by, DeleteSession(session_id=session_id))
    await _note(actor, "session_deleted", session_id, by)


async def _note(actor: SandboxActor, what: str, session_id: str, by: Caller) -> None:
    if actor.workshop.exists(actor.name):  # its end is the last that is noted
        await actor.history.note(what, cause=f"{session_id!r} was asked for", by=by.name)
