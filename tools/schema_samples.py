"""JSON schemas as programs write them: 32 kinds of fields of Pydantic models, 17 tools such as MCP servers describe, written for this
measurement after the forms that Pydantic 2, zod-to-json-schema and FastMCP make, and 51 tools of real MCP servers."""

from __future__ import annotations

import json
import pathlib

REAL_TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tests/data/schemas/mcp_tools.json"


def real_tools():
    """{server: {tool: schema}}, without descriptions and titles; the file names sources and commits."""
    return {name: server["tools"] for name, server in json.loads(REAL_TOOLS.read_text()).items()}


def pydantic_fields():
    """{kind: the schema that Pydantic makes of a model with such a field}."""
    import datetime
    import decimal
    import enum
    import ipaddress
    import typing
    import uuid
    from typing import Annotated, Literal, Optional, Union

    import pydantic
    import typing_extensions
    from pydantic import Field

    class Color(enum.Enum):
        red = "red"
        green = "green"

    class Level(enum.IntEnum):
        low = 1
        high = 2

    class Point(pydantic.BaseModel):
        x: float
        y: float = 0.0

    class Cat(pydantic.BaseModel):
        kind: Literal["cat"]
        lives: int

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]
        name: str

    class Node(pydantic.BaseModel):
        value: int
        next: Optional["Node"] = None

    class Closed(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        a: int

    class Typed(typing_extensions.TypedDict, total=False):
        name: str
        size: int

    Pair = typing.NamedTuple("Pair", [("left", int), ("right", str)])
    kinds = {
        "str": str, "int": int, "float": float, "bool": bool, "None": None, "Optional[str]": Optional[str], "Union[int, str]": Union[int, str],
        "Literal of texts": Literal["a", "b"], "Literal of kinds": Literal[1, "a", True, None], "Enum": Color, "IntEnum": Level,
        "list[int]": list[int], "list with lengths": Annotated[list[str], Field(min_length=1, max_length=5)], "tuple[int, str]": tuple[int, str],
        "tuple[int, ...]": tuple[int, ...], "set of an Enum": set[Color], "set[str]": set[str], "dict[str, int]": dict[str, int],
        "dict with Literal keys": dict[Literal["a", "b"], int],
        "str with pattern and lengths": Annotated[str, Field(pattern="^[a-z]+$", min_length=2, max_length=8)],
        "int with bounds": Annotated[int, Field(ge=0, lt=100)], "float with bounds": Annotated[float, Field(gt=0, le=1)],
        "int with multiple_of": Annotated[int, Field(multiple_of=5)], "Decimal": decimal.Decimal,
        "datetime, date, time": tuple[datetime.datetime, datetime.date, datetime.time], "timedelta": datetime.timedelta, "UUID": uuid.UUID,
        "URL and IP address": tuple[pydantic.AnyUrl, ipaddress.IPv4Address, ipaddress.IPv6Address], "model": Point,
        "discriminated union": Annotated[Union[Cat, Dog], Field(discriminator="kind")], "recursive model": Node,
        "closed model, TypedDict, NamedTuple": tuple[Closed, Typed, Pair],
    }
    out = {}
    for name, kind in kinds.items():
        model = pydantic.create_model("Model", field=(kind, ...))
        out[name] = model.model_json_schema()
    return out


def _object(required=(), closed=True, **properties):
    out = {"type": "object", "properties": properties}
    if required:
        out["required"] = list(required)
    if closed:
        out["additionalProperties"] = False
    return out


_TEXT = {"type": "string"}
_DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

MCP_TOOLS = {
    "read_file": {**_object(["path"], path=_TEXT, tail={"type": "number", "description": "lines from the end"}, head={"type": "number"}), **_DRAFT_7},
    "edit_file": {**_object(["path", "edits"], path=_TEXT, dryRun={"type": "boolean", "default": False},
                            edits={"type": "array", "items": _object(["oldText", "newText"], oldText=_TEXT, newText=_TEXT)}), **_DRAFT_7},
    "search_files": {**_object(["path", "pattern"], path=_TEXT, pattern=_TEXT, excludePatterns={"type": "array", "items": _TEXT, "default": []}),
                     **_DRAFT_7},
    "read_multiple": {**_object(["paths"], paths={"type": "array", "items": _TEXT, "minItems": 1, "uniqueItems": False}), **_DRAFT_7},
    "git_log": _object(["repo_path"], closed=False, repo_path={"title": "Repo Path", "type": "string"},
                       max_count={"title": "Max Count", "type": "integer", "default": 10, "exclusiveMinimum": 0},
                       start={"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None}),
    "create_issue": {**_object(["owner", "repo", "title"], owner=_TEXT, repo=_TEXT, title={"type": "string", "minLength": 1, "maxLength": 256},
                               body=_TEXT, assignees={"type": "array", "items": _TEXT, "maxItems": 10}, milestone={"type": "number", "minimum": 1},
                               labels={"type": "array", "items": {"enum": ["bug", "docs", "feature"]}, "uniqueItems": True}), **_DRAFT_7},
    "create_review": {**_object(["owner", "pull_number", "event"], owner=_TEXT, pull_number={"type": "integer"},
                                event={"type": "string", "enum": ["APPROVE", "REQUEST_CHANGES", "COMMENT"]},
                                comments={"type": "array", "items": {"anyOf": [
                                    _object(["path", "position", "body"], path=_TEXT, position={"type": "number"}, body=_TEXT),
                                    _object(["path", "line", "body"], path=_TEXT, line={"type": "number"}, body=_TEXT)]}}), **_DRAFT_7},
    "fetch": _object(["url"], closed=False, url={"type": "string", "format": "uri", "minLength": 1},
                     max_length={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000000, "default": 5000},
                     start_index={"type": "integer", "minimum": 0}, raw={"type": "boolean"}),
    "query": _object(["sql"], closed=False, sql={"type": "string", "pattern": "^(SELECT|select) ", "maxLength": 2000},
                     params={"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}}),
    "send_message": _object(["channel_id", "text"], channel_id={"type": "string", "pattern": "^[CGD][A-Z0-9]{8,}$"}, text=_TEXT,
                            thread_ts={"type": "string", "pattern": "^\\d{10}\\.\\d{6}$"}, reply_broadcast={"type": "boolean"}),
    "maps_directions": _object(["origin", "destination"], origin=_TEXT, destination=_TEXT,
                               mode={"type": "string", "enum": ["driving", "walking", "bicycling", "transit"], "default": "driving"},
                               waypoints={"type": "array", "maxItems": 8, "items": _object(
                                   ["latitude", "longitude"], latitude={"type": "number", "minimum": -90, "maximum": 90},
                                   longitude={"type": "number", "minimum": -180, "maximum": 180})}),
    "web_search": _object(["query"], query={"type": "string", "maxLength": 400}, count={"type": "number", "minimum": 1, "maximum": 20, "default": 10},
                          offset={"type": "number", "minimum": 0, "maximum": 9}, freshness={"type": "string", "format": "freshness"}),
    "create_entities": {**_object(["entities"], entities={"type": "array", "items": _object(
        ["name", "entityType", "observations"], name=_TEXT, entityType=_TEXT, observations={"type": "array", "items": _TEXT})}), **_DRAFT_7},
    "think_step": {**_object(["thought", "thoughtNumber", "totalThoughts", "nextThoughtNeeded"], thought=_TEXT, nextThoughtNeeded={"type": "boolean"},
                             thoughtNumber={"type": "integer", "minimum": 1}, totalThoughts={"type": "integer", "minimum": 1},
                             branchId=_TEXT), **_DRAFT_7},
    "browser_fill": {**_object(["fields"], fields={"type": "array", "items": {"oneOf": [
        _object(["type", "ref", "value"], type={"const": "textbox"}, ref=_TEXT, value=_TEXT),
        _object(["type", "ref", "checked"], type={"const": "checkbox"}, ref=_TEXT, checked={"type": "boolean"}),
        _object(["type", "ref", "range"], type={"const": "slider"}, ref=_TEXT, range={
            "type": "array", "items": [{"type": "number"}, {"type": "number"}], "additionalItems": False, "minItems": 2})]}}), **_DRAFT_7},
    "update_page": _object(["page_id", "properties"], page_id={"type": "string", "format": "uuid"}, archived={"type": "boolean", "nullable": True},
                           properties={"type": "object", "propertyNames": {"pattern": "^[A-Za-z_]{1,40}$"}, "minProperties": 1,
                                       "additionalProperties": {"$ref": "#/$defs/value"}}) |
                   {"$defs": {"value": {"anyOf": [_TEXT, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
                                                  {"type": "array", "items": {"$ref": "#/$defs/value"}}]}}},
    "run_job": _object(["job", "env"], closed=False, job={"type": "string", "not": {"enum": ["shutdown", "reboot"]}, "minLength": 1},
                       env={"type": "object", "patternProperties": {"^[A-Z_]+$": {"type": "string"}}, "additionalProperties": False},
                       cpu={"type": "number", "multipleOf": 0.25, "minimum": 0.25, "maximum": 64}) |
               {"allOf": [{"if": {"properties": {"job": {"const": "deploy"}}, "required": ["job"]}, "then": {"required": ["cpu"]}}]},
}
