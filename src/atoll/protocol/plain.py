"""Plain values: what Atoll hands out, as dictionaries, lists, text and numbers that `json.dumps` takes as they are."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class Plain(msgspec.Struct, frozen=True):
    """A value that can be had as a plain one.

    `_PLAIN` are the attributes that count, for a value whose fields are not what its users see: bytes that are text for
    them, or what is computed of others. Times are text as in ISO 8601.
    """

    _PLAIN: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The whole value, as `json.dumps` takes it."""
        names = self._PLAIN or self.__struct_fields__
        return {name: to_plain(getattr(self, name)) for name in names}


def to_plain(value: object) -> Any:
    if isinstance(value, Plain):
        return value.to_dict()
    return msgspec.to_builtins(value, enc_hook=_of_another)


def _of_another(value: Any) -> Any:
    """The plain form that a value has of its own, as an error does."""
    return value.to_dict()
