"""The spec language as a JSON Schema, for editors and for checks without kgen.

Made from the models. What JSON Schema cannot say (rules across fields, what is
not generated yet) is left to kgen.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from kgen.spec.model import KERNEL_KINDS, SpecFile
from kgen.spec.names import ModuleName

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Keywords of Pydantic's output that say nothing to a reader: class names, and OpenAPI's hint at unions.
_NOISE = ("title", "discriminator")


def json_schema() -> dict[str, Any]:
    """The schema of a spec file (JSON Schema 2020-12)."""
    made = _clean(SpecFile.model_json_schema())
    definitions: dict[str, Any] = made["$defs"]
    # These follow from other fields; the models' defaults only stand in for them.
    for layer, fields in (("GroupedAttention", ("head_dim_v", "sm_scale")), ("LatentAttention", ("sm_scale",))):
        for field in fields:
            del definitions[layer]["properties"][field]["default"]
    kernels = made["properties"]["kernels"]
    made["properties"]["kernels"] = {"description": kernels["description"], **_kernels(definitions)}
    head = {
        "$schema": DIALECT,
        "title": "kgen spec",
        "description": "The attention of one layer type of a model, and the kernels to generate for it.",
    }
    return head | {key: value for key, value in made.items() if key not in head}


def text() -> str:
    """The schema as the text of a file, as `kgen schema` prints it."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _kernels(definitions: dict[str, Any]) -> dict[str, Any]:
    """Kernels by name: one named like a kind may leave ``kind`` out."""
    names = {definitions[name]["properties"]["kind"]["const"]: name for name in definitions if name.endswith("Kernel")}
    for name in names.values():
        definitions[name]["required"] = [field for field in definitions[name]["required"] if field != "kind"]
        if not definitions[name]["required"]:
            del definitions[name]["required"]
    references = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in names.items()}
    with_kind = {"required": ["kind"], "anyOf": list(references.values())}
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": TypeAdapter(ModuleName).json_schema(),
        "properties": {kind: {"anyOf": [references[kind], with_kind]} for kind in KERNEL_KINDS},
        "additionalProperties": with_kind,
    }


def _clean(node: Any) -> Any:
    """``node`` without noise; a field that is called ``title`` is kept."""
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _clean(item) for name, item in value.items()}
        elif key == "oneOf" and "discriminator" in node:
            kept["anyOf"] = _clean(value)  # told apart by `kind`; an editor's messages are better this way
        elif key not in _NOISE:
            kept[key] = _clean(value)
    return kept
