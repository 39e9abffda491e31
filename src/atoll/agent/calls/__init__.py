"""The calls that an agent answers, a file for each noun: `register` says by what. To be here is all that counts."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

NOUNS = tuple(import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__))
