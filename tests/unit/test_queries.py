"""Queries: one struct parses and documents them, and what makes no sense is refused."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import pytest
from msgspec import Meta

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.server.api_route import ApiRoute
from atoll.server.queries import MAX_NUMBER, MAX_PARAMETERS, Query, parameters_of, parse_query
from atoll.server.routes import ROUTES


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Shelf(Query, frozen=True, kw_only=True):
    name: Annotated[str | None, Meta(description="a name")] = None
    colour: Annotated[Colour | None, Meta(description="a colour")] = None
    count: Annotated[int, Meta(ge=1, le=10, description="so many")] = 5
    since: Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="after this")] = 0
    sorted: Annotated[bool, Meta(description="in order")] = True
    tag: Annotated[tuple[str, ...], Meta(description="a tag")] = ()


def test_what_is_not_given_has_its_default() -> None:
    assert parse_query(Shelf, b"") == Shelf()


def test_each_parameter_has_the_type_of_its_field() -> None:
    given = b"name=a+b%2Fc&colour=red&count=007&since=0&sorted=FALSE&tag=x&tag=&tag=y"
    assert parse_query(Shelf, given) == Shelf(
        name="a b/c", colour=Colour.RED, count=7, since=0, sorted=False, tag=("x", "", "y")
    )


@pytest.mark.parametrize(
    "text",
    [
        "name=a&name=b",
        "count=1&count=1",
        "colour=blue",
        "colour=RED",
        "colour=",
        "colour=null",
        "colour=%ff",
        "count=0",
        "count=11",
        "count=-1",
        "count=+1",
        "count=1e1",
        "count=1.0",
        "count=1_0",
        "count= 1",
        "count=",
        "count=null",
        "count=%ff",
        "count=%d9%a3",
        "count=%c2%b2",
        "since=" + "9" * 19,
        "since=" + "0" * 5000,
        "sorted=yes",
        "sorted=",
        "sorted=null",
        "sorted=%ff",
        "&".join(["tag=x"] * (MAX_PARAMETERS + 1)),
    ],
)
def test_nonsense_is_refused_and_the_remedy_says_what_to_give(text: str) -> None:
    with pytest.raises(AtollError) as caught:
        parse_query(Shelf, text.encode())
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert len(caught.value.message) < 300 and caught.value.remedy
    assert caught.value.message.isprintable()


def test_the_remedy_names_what_can_be_given() -> None:
    remedies = {}
    for text in (b"colour=x", b"count=x", b"since=x", b"sorted=x"):
        with pytest.raises(AtollError) as caught:
            parse_query(Shelf, text)
        remedies[text.partition(b"=")[0]] = caught.value.remedy
    assert remedies == {
        b"colour": "Give one of red, green: a colour.",
        b"count": "Give a number from 1 to 10: so many.",
        b"since": f"Give a number from 0 to {MAX_NUMBER}: after this.",
        b"sorted": "Give true or false: in order.",
    }


def test_what_nobody_knows_is_passed_over() -> None:
    assert parse_query(Shelf, b"colours=red&count=3&x&=&&;&count%00=%ff") == Shelf(count=3)


@pytest.mark.parametrize("text", ["null", "None", "", "true", "1", " ", "a=b", "\u00e9"])
def test_text_is_what_it_is(text: str) -> None:
    assert parse_query(Shelf, b"name=" + text.encode()).name == text


@pytest.mark.parametrize("given", [b"%ff%c3%a9", b"\xff\xc3\xa9", b"\xff%c3%a9"])
def test_bytes_stay_what_they_are_by_percent_signs_or_without(given: bytes) -> None:
    name = parse_query(Shelf, b"name=" + given).name
    assert name is not None and name.encode(errors="surrogateescape") == b"\xff\xc3\xa9"


def test_the_same_struct_is_its_documentation() -> None:
    assert {each.name: (each.schema, each.description) for each in parameters_of(Shelf)} == {
        "name": ({"type": "string"}, "a name"),
        "colour": ({"type": "string", "enum": ["green", "red"]}, "a colour"),
        "count": ({"type": "integer", "minimum": 1, "maximum": 10, "default": 5}, "so many"),
        "since": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER, "default": 0}, "after this"),
        "sorted": ({"type": "boolean", "default": True}, "in order"),
        "tag": ({"type": "array", "items": {"type": "string"}}, "a tag"),
    }


@pytest.mark.parametrize("route", [route for route in ROUTES if route.query], ids=lambda route: route.name)
def test_every_parameter_of_a_route_says_what_it_is_for(route: ApiRoute) -> None:
    assert route.query
    assert all(parameter.description for parameter in parameters_of(route.query))
