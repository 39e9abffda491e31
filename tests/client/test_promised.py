"""Promised names: each is there in both halves, says so when it is used, and is in the table and in the guide."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import atoll
from atoll.client.promised import AsyncPromised
from atoll.client_sync.promised import Promised
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.values.promised import PROMISED
from tests.client.halves import Half

NOWHERE = "unix:///nowhere/server.sock"
GUIDE = Path(__file__).parents[2] / "docs" / "what-comes.md"
METHODS = sorted(name for name in PROMISED if not name.endswith("=") and not name.startswith("atoll."))
OPTIONS = sorted(name.rstrip("=") for name in PROMISED if name.endswith("="))
OF_THE_PACKAGE = sorted(name.removeprefix("atoll.") for name in PROMISED if name.startswith("atoll."))
GIVEN = {"create": False, "strict": True, "stop_after": "1h", "ttl": "1h"}


def methods_of(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [AsyncPromised, Promised])
def test_the_table_has_every_promised_method_and_no_other(kind: type) -> None:
    assert sorted(methods_of(kind)) == METHODS


def test_the_guide_lists_what_the_table_has() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(PROMISED)


@pytest.mark.parametrize("name", METHODS)
async def test_a_promised_method_says_that_it_comes_and_what_to_do_until_then(half: Half, name: str) -> None:
    sandbox = half.get_sandbox("a", url=NOWHERE)
    method = getattr(sandbox, name)
    needed = [
        8080 if parameter.name == "port" else "a"
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    with pytest.raises(NotImplementedError, match=rf"{name}\(\) is not available yet") as caught:
        outcome = method(*needed)
        if inspect.isawaitable(outcome):
            await outcome
    check(caught.value, name)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_promised_option_says_so_when_it_is_given(half: Half, option: str) -> None:
    assert half.get_sandbox("a", url=NOWHERE)
    with pytest.raises(NotImplementedError, match=f"{option}=") as caught:
        half.get_sandbox("a", url=NOWHERE, **{option: GIVEN.get(option, "x")})
    check(caught.value, option)


def test_what_is_promised_of_the_package_says_so() -> None:
    uses: dict[str, Callable[[], object]] = {
        "Image.from_": lambda: atoll.Image.from_("default"),
        "proxy_to_sandbox": lambda: atoll.proxy_to_sandbox(1),
    }
    assert sorted(uses) == OF_THE_PACKAGE
    for use in uses.values():
        with pytest.raises(NotImplementedError) as caught:
            use()
        check(caught.value, "atoll.")


@pytest.mark.parametrize("kind", [AsyncPromised, Promised])
def test_every_promised_method_is_typed(kind: type) -> None:
    for name, method in methods_of(kind).items():
        hints = get_type_hints(method)
        assert set(inspect.signature(method).parameters) - {"self"} == set(hints) - {"return"}, name


def check(problem: BaseException, name: str) -> None:
    assert isinstance(problem, AtollError)
    assert problem.code is ErrorCode.NOT_AVAILABLE_YET
    assert str(problem.context["option"]).startswith(name)
    assert problem.remedy.startswith("Until then")
