"""Routes: a file for each noun, whose ROUTES the router and the OpenAPI document are made from."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from atoll.server.api_route import ApiRoute

NOUNS = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
ROUTES: list[ApiRoute] = [route for noun in NOUNS for route in noun.ROUTES]
