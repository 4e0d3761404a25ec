"""The difference between two generated modules, function by function, in numbered hunks.

    python docs/tutorial/kernel_diff.py OLD NEW
    python docs/tutorial/kernel_diff.py ONE

OLD, NEW and ONE are generated files, or ``FILE:FUNCTION`` for one function of a file; ONE is printed as it is. Left
out is what repeats the spec: headers, docstrings, ``SPEC`` and launch tables.
"""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

CONTEXT = 1  # unchanged lines shown around a change


def functions(named: str) -> dict[str, list[str]]:
    """Lines of the functions of a module, or of the one that is named, without docstrings."""
    file, _, only = named.partition(":")
    text = Path(file).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or only not in ("", node.name):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        docstring = range(0)
        if ast.get_docstring(node) is not None:
            docstring = range(node.body[0].lineno, node.body[0].end_lineno + 1)
        found[node.name] = [lines[n - 1] for n in range(first, node.end_lineno + 1) if n not in docstring]
    if not found:
        raise SystemExit(f"{file} has no function {only}")
    return found


def hunks(old: list[str], new: list[str]) -> list[list[str]]:
    """Each change with its context, lines marked as in a unified diff."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    found = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        marked = []
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                marked += [f" {line}" for line in old[old_from:old_to]]
            else:
                marked += [f"-{line}" for line in old[old_from:old_to]]
                marked += [f"+{line}" for line in new[new_from:new_to]]
        found.append([line.rstrip() for line in marked])
    return found


def show(name: str) -> None:
    """Print functions as they are."""
    print("\n\n\n".join("\n".join(lines) for lines in functions(name).values()))


def compare(old_name: str, new_name: str) -> None:
    """Print the hunks, numbered, with the function that each is in."""
    old, new = functions(old_name), functions(new_name)
    if ":" in old_name and ":" in new_name:  # two functions, whatever their names
        pairs = [(next(iter(new)), *old.values(), *new.values())]
    else:
        pairs = [(name, old.get(name, []), new.get(name, [])) for name in {**old, **new}]
    number = 0
    for name, before, after in pairs:
        for lines in hunks(before, after):
            number += 1
            print(f"@@ {number}: {name}")
            print("\n".join(lines))


if __name__ == "__main__":
    {1: show, 2: compare}[len(sys.argv) - 1](*sys.argv[1:])
