"""Checks an OpenAPI document, and compares the replies on standard input with it.

Each reply has `method`, `path`, `status` and `body`. The description is OpenAPI 3.1, whose schemas are JSON Schema of
2020-12, so that jsonschema validates replies without a translation.
"""

import json
import sys
from urllib.parse import parse_qsl, urlsplit

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

document = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
resource = Resource.from_contents(document, default_specification=DRAFT202012)
registry = Registry().with_resource("", resource)
problems = []


def resolved(value):
    """The target of a reference."""
    while isinstance(value, dict) and set(value) == {"$ref"}:
        found = document
        for part in value["$ref"].removeprefix("#/").split("/"):
            if part not in found:
                problems.append(f"{value['$ref']}: refers to nothing")
                return {}
            found = found[part]
        value = found
    return value


def everything(value, place=""):
    """Checks every reference and every schema of the document."""
    if isinstance(value, dict):
        if "$ref" in value:
            resolved({"$ref": value["$ref"]})
            if set(value) != {"$ref"}:
                problems.append(f"{place}: a reference has siblings")
        for name, below in value.items():
            if name == "schema":
                Draft202012Validator.check_schema(below)
            everything(below, f"{place}/{name}")
    elif isinstance(value, list):
        for at, below in enumerate(value):
            everything(below, f"{place}/{at}")


def used():
    """Checks that every component is used."""
    text = json.dumps(document)
    for kind in ("schemas", "responses"):
        for name in document["components"][kind]:
            if f'"#/components/{kind}/{name}"' not in text:
                problems.append(f"components/{kind}/{name}: nothing refers to it")


def operation(reply):
    """The operation that a reply belongs to."""
    path = urlsplit(reply["path"]).path
    for template, operations in document["paths"].items():
        parts, given = template.split("/"), path.split("/")
        same = len(parts) == len(given) and all(p == g or p.startswith("{") for p, g in zip(parts, given))
        if same and reply["method"].lower() in operations:
            return operations[reply["method"].lower()]
    return None


def check(reply):
    name = f"{reply['method']} {reply['path']} {reply['status']}"
    found = operation(reply)
    if found is None:
        problems.append(f"{name}: no such operation")
        return
    response = resolved(found["responses"].get(str(reply["status"]), {}))
    schema = response.get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        problems.append(f"{name}: the status has no schema")
        return
    validator = Draft202012Validator(schema, registry=registry, _resolver=registry.resolver_with_root(resource))
    problems.extend(f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(reply["body"]))
    if reply["status"] < 400:
        known = {p["name"]: p["schema"] for p in map(resolved, found.get("parameters", [])) if p["in"] == "query"}
        for parameter, value in parse_qsl(urlsplit(reply["path"]).query):
            if parameter not in known:
                problems.append(f"{name}: the parameter {parameter} is not described")
                continue
            is_number = known[parameter].get("type") == "integer"
            Draft202012Validator(known[parameter]).validate(int(value) if is_number else value)


if document.get("openapi") != "3.1.0":
    problems.append("openapi: expected 3.1.0")
identifiers = [op["operationId"] for path in document["paths"].values() for op in path.values() if "operationId" in op]
if len(set(identifiers)) != len(identifiers):
    problems.append("operationId: not unique")
everything(document)
for schema in document["components"]["schemas"].values():
    Draft202012Validator.check_schema(schema)
used()
for reply in json.load(sys.stdin):
    check(reply)
if problems:
    sys.exit("\n".join(problems))
