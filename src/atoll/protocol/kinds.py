"""The kinds of calls there are: each file of this folder defines those of its noun, and that is all there is to do."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from atoll import protocol
from atoll.protocol.calls import Call

OF_ALL_NOUNS = ("kinds", "messages", "versions")  # files that are made of what all the others define


def _kinds_below(kind: type[Call[Any]]) -> Iterator[type[Call[Any]]]:
    for each in kind.__subclasses__():
        if each.__struct_config__.tag:
            yield each
        yield from _kinds_below(each)


for _file in iter_modules(protocol.__path__):
    if _file.name not in OF_ALL_NOUNS:
        import_module(f"{protocol.__name__}.{_file.name}")
KINDS = tuple(kind for kind in _kinds_below(Call) if kind.__module__.startswith(protocol.__name__))
