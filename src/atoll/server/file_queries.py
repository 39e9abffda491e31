"""Queries of requests about files: what they say after the question mark."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from atoll.protocol.limits import parse_bounds
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.protocol.transfer_bounds import MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, Bounds
from atoll.server.file_bodies import choose_path
from atoll.server.problems import bad_request
from atoll.server.queries import Query


def _bound(what: str, usual: int) -> Meta:
    return Meta(description=f"{what}; {usual} if not given", extra_json_schema={"pattern": "^[0-9]+$|^none$"})


class FileQuery(Query, frozen=True, kw_only=True):
    """A file, and where relative paths of a request begin."""

    path: Annotated[str | None, Meta(description="a path; a relative one counts from the session's directory")] = None
    path_base64: Annotated[str | None, Meta(description="the same in base64, for names that are not UTF-8")] = None
    session_id: Annotated[str, Meta(description="the session whose directory it is")] = DEFAULT_SESSION

    def __post_init__(self) -> None:
        if not self.session_id.isprintable():  # also what cannot be sent on
            raise bad_request(f"session_id={self.session_id!r:.100} is none")

    @property
    def raw_path(self) -> bytes:
        return choose_path(self.path, self.path_base64)


class ListQuery(FileQuery, frozen=True, kw_only=True):
    """A directory; the session's own, if none is named."""

    recursive: Annotated[bool, Meta(description="also what is in directories")] = False
    hidden: Annotated[bool, Meta(description="also names that begin with a dot")] = False

    @property
    def raw_path(self) -> bytes:
        return b"." if self.path is None and self.path_base64 is None else super().raw_path


class DeleteQuery(FileQuery, frozen=True, kw_only=True):
    recursive: Annotated[bool, Meta(description="also a directory, with what is in it")] = False


class InfoQuery(FileQuery, frozen=True, kw_only=True):
    follow: Annotated[bool, Meta(description="what a link points to, not the link")] = True


class WriteQuery(FileQuery, frozen=True, kw_only=True):
    mode: Annotated[
        str | None, Meta(description="octal, such as 0644", extra_json_schema={"pattern": "^0?[0-7]{1,4}$"})
    ] = None
    sync: Annotated[bool, Meta(description="answer when it is on disk")] = False
    exclusive: Annotated[bool, Meta(description="fail if it is there already")] = False
    append: Annotated[bool, Meta(description="add it to the end of what is there")] = False


class ReadQuery(FileQuery, frozen=True, kw_only=True):
    max_bytes: Annotated[str | None, _bound("how much content there may be", MAX_BYTES)] = None

    @property
    def bounds(self) -> Bounds:
        """Of a download: those given, the usual ones otherwise."""
        names = ("max_bytes", "max_entries", "max_depth")
        return parse_bounds(**{name: found for name in names if (found := getattr(self, name, None)) is not None})


class PackQuery(ReadQuery, frozen=True, kw_only=True):
    max_entries: Annotated[str | None, _bound("how many entries", MAX_ENTRIES)] = None
    max_depth: Annotated[str | None, _bound("how many directories deep", MAX_DEPTH)] = None
    exclude: Annotated[
        tuple[str, ...], Meta(description="a rule as in .gitignore for what is left out; may be given several times")
    ] = ()


class WatchQuery(FileQuery, frozen=True, kw_only=True):
    recursive: Annotated[bool, Meta(description="also what is in directories")] = True
    include: Annotated[
        tuple[str, ...], Meta(description="only names or paths like this shell pattern; may be given several times")
    ] = ()
    exclude: Annotated[
        tuple[str, ...], Meta(description="no names or paths like this shell pattern; may be given several times")
    ] = ()
