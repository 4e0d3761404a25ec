"""When two launches compile to the same code: the key that lets many specs share one compile."""

from __future__ import annotations

import ast
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgen.aot.triton_api import RecordedLaunch


def launch_key(launch: RecordedLaunch, target: str) -> str:
    """sha256 of everything the machine code depends on; comments, line numbers and the module's place do not count."""
    facts = {
        "target": target,
        "sources": sorted(_sources(launch.function)),
        "signature": list(launch.signature.items()),
        "constants": sorted((list(path), repr(value)) for path, value in launch.constants.items()),
        "attributes": sorted((list(path), repr(value)) for path, value in launch.attributes.items()),
        "options": sorted((name, repr(value)) for name, value in launch.options.items()),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def functions_of(function: Any) -> dict[str, Any]:
    """The jitted function and every jitted function of its module that it calls, by name."""
    found: dict[str, Any] = {}
    pending = [function]
    while pending:
        current = pending.pop()
        if current.__name__ in found:
            continue
        found[current.__name__] = current
        for value in _globals_used(current).values():
            if is_jitted(value) and value.__module__ == function.__module__:
                pending.append(value)
    return found


def is_jitted(value: Any) -> bool:
    """A ``triton.jit`` or ``gluon.jit`` function, not the one the interpreter runs."""
    return type(value).__name__ in ("JITFunction", "GluonJITFunction")


def _sources(function: Any) -> Iterator[str]:
    """Each function of the kernel, a tree without comments and docstring, with the constants of its module it uses."""
    for name, member in functions_of(function).items():
        tree = ast.parse(member.src).body[0]
        if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree) is not None:
            tree.body = tree.body[1:]
        values = {key: repr(value) for key, value in _globals_used(member).items() if _is_constant(value)}
        yield json.dumps([name, ast.dump(tree), sorted(values.items())])


def _globals_used(function: Any) -> dict[str, Any]:
    names = {node.id for node in ast.walk(ast.parse(function.src)) if isinstance(node, ast.Name)}
    scope = function.fn.__globals__
    return {name: scope[name] for name in names if name in scope}


def _is_constant(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, tuple)) or type(value).__name__ in {"constexpr", "dtype"}
