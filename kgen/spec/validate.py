"""Data of a spec file to a ``SpecFile``, with every fault named in the words of the spec language.

Pydantic finds the faults; this module says them, and repairs a draft of the
data so that the next round finds those that were hidden behind them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from kgen.diagnostics import Loc, Problem, clipped, joined
from kgen.spec import names
from kgen.spec.draft import Draft
from kgen.spec.fields import FieldType, at, place, type_at
from kgen.spec.model import SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgen.spec.document import Document
    from kgen.spec.fields import Place

_MAX_ROUNDS = 8  # a round uncovers at least one more level of the spec
_MAX_FAULTS = 200  # faults looked at in a round; the loader shows fewer
_MAX_GUESSED = 64  # characters; longer words are not misspellings, and comparing them is slow


@dataclass(frozen=True)
class Validated:
    """The spec and its problems.

    With problems, the spec is what is left after repairs, good for finding more
    problems only, or ``None``.
    """

    spec: SpecFile | None
    problems: tuple[Problem, ...]
    draft: Draft

    def as_written(self, problems: Iterable[Problem]) -> list[Problem]:
        """Problems of the repaired spec, at the keys that the file has."""
        return [replace(problem, loc=self.draft.written(problem.loc)) for problem in problems]


def validate(document: Document) -> Validated:
    """Check the data of a document against the models of the spec language."""
    checker = _Checker(document)
    spec = checker.run()
    return Validated(spec, tuple(checker.problems), checker.draft)


def closest(word: str, words: Iterable[str]) -> str | None:
    """The one of ``words`` that ``word`` was probably meant to be."""
    if len(word) > _MAX_GUESSED:
        return None
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(words), n=1)
    return found[0] if found else None


class _Checker:
    """Validates, reports and repairs until nothing new is found."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self.draft = Draft(document.data)
        self._reported: set[Loc] = set(document.refused)

    def run(self) -> SpecFile | None:
        for _ in range(_MAX_ROUNDS):
            try:
                return SpecFile.model_validate(self.draft.data)
            except ValidationError as error:
                faults = list(error.errors(include_url=False, include_input=False))
            # Missing fields first: they are judged while the misspelt key is still there.
            faults.sort(key=lambda fault: fault["type"] == "extra_forbidden")
            for fault in faults[:_MAX_FAULTS]:
                self._fault(fault, place(fault["loc"]))
            if len(faults) > _MAX_FAULTS or not self.draft.commit():
                return None
        return None

    def _fault(self, fault: Mapping[str, Any], where: Place) -> None:
        loc, kind = where.loc, where.type
        if where.is_key:
            message = f"{_shown(loc[-1])} cannot name a kernel: {_reason(fault)}"
            self._report("KG104", loc, message, _other_name(loc[-1], names.module_fault), at="key")
            self.draft.leave_out(loc)
        elif fault["type"] == "extra_forbidden":
            self._unknown(loc, where.owner)
        elif fault["type"] == "missing" and kind is not None:
            self._missing(loc, f"{loc[-1]}: {kind.allowed()}")
        elif fault["type"] == "union_tag_not_found" and kind is not None:
            self._missing_kind(loc, kind)
        elif fault["type"] == "union_tag_invalid" and kind is not None:
            self._wrong((*loc, "kind"), FieldType(Literal[tuple(kind.models)]), fault)
        elif kind is not None:
            self._wrong(loc, kind, fault)

    def _unknown(self, loc: Loc, owner: FieldType | None) -> None:
        fields = list(owner.annotation.model_fields) if owner is not None else []
        present = at(self.draft.data, loc[:-1])
        guess = closest(str(loc[-1]), [field for field in fields if field not in present])
        hint = f"did you mean {guess}?" if guess else f"its fields: {', '.join(fields)}"
        self._report("KG103", loc, f"{_shown(loc[-1])} is not a field of {_name(loc[:-1])}", hint, at="key")
        if guess:
            self.draft.rename(loc, guess)
        else:
            self.draft.remove(loc)

    def _missing(self, loc: Loc, hint: str) -> None:
        owner = type_at(loc[:-1], self.draft.data)
        present = at(self.draft.data, loc[:-1])
        fields = list(owner.annotation.model_fields) if owner is not None and owner.is_model else []
        free = [field for field in fields if field not in present]
        unknown = [key for key in present if key not in fields][:_MAX_FAULTS]
        if any(closest(key, free) == loc[-1] for key in unknown):
            return  # the unknown key is reported, and renamed
        self._report("KG101", loc, f"{_name(loc[:-1])} needs the field {loc[-1]}", hint)
        self.draft.leave_out(loc)

    def _missing_kind(self, loc: Loc, union: FieldType) -> None:
        """Go on as the kind whose fields fit best, if one fits better than the others."""
        tags = list(union.models)
        message, hint = f"{_name(loc)} needs the field kind", f"kind: {joined(tags)}"
        present = at(self.draft.data, loc)
        scores = [sum(key in model.model_fields for key in present) for model in union.models.values()]
        guess = tags[scores.index(max(scores))] if scores.count(max(scores)) == 1 else None
        if loc[:1] == ("kernels",) and len(loc) == 2:
            message = f"kernel {_shown(loc[1])} needs the field kind, as its name is not {joined(tags)}"
            guess = next((tag for tag in tags if tag in str(loc[1])), None) or closest(str(loc[1]), tags) or guess
        self._report("KG101", (*loc, "kind"), message, f"did you mean kind: {guess}?" if guess else hint)
        if guess:
            self.draft.replace((*loc, "kind"), guess)
        else:
            self.draft.leave_out(loc)

    def _wrong(self, loc: Loc, kind: FieldType, fault: Mapping[str, Any]) -> None:
        value, name = at(self.draft.data, loc), _name(loc)
        if fault["type"] == "too_short" and value:
            return  # it has entries, and they are reported
        node = self._document.nodes.get(self.draft.written(loc))
        if node is None:
            return  # a default, wrong because of the field that it follows from
        text = node.text
        if fault["type"] == "value_error":
            other = _other_name(value, names.fault)
            self._report("KG104", loc, f"{name} is {clipped(text or '')}: {_reason(fault)}", other)
            self.draft.replace(loc, "spec")
            return
        guess = closest(value, kind.choices()) if isinstance(value, str) else None
        is_what = "has no value" if value is None else f"is {_described(value, text)}"
        hint = f"did you mean {guess}?" if guess else _usual_slip(loc, value, kind)
        self._report("KG102", loc, f"{name} {is_what}, must be {kind.allowed()}", hint)
        if guess and isinstance(loc[-1], str):
            self.draft.replace(loc, guess)
        else:
            self.draft.leave_out(loc)

    def _report(
        self, code: str, loc: Loc, message: str, hint: str | None, at: Literal["key", "value"] = "value"
    ) -> None:
        """Report a fault, unless it is (in) a value that has been reported."""
        loc = self.draft.written(loc)
        if not any(loc[:end] in self._reported for end in range(len(loc) + 1)):
            self._reported.add(loc)
            self.problems.append(Problem(code, loc, message, hint, at))


def _name(loc: Loc) -> str:
    """How a message calls the field at ``loc``."""
    if not loc:
        return "the spec"
    if isinstance(loc[-1], int):
        return f"entry {loc[-1] + 1} of {_name(loc[:-1])}"
    return f"kernel {_shown(loc[1])}" if len(loc) == 2 and loc[0] == "kernels" else _shown(loc[-1])


def _shown(key: str | int) -> str:
    return clipped(str(key)) or '""'


def _described(value: Any, text: str | None) -> str:
    if isinstance(value, dict | list):
        article = "a" if value else "an empty"
        return f"{article} mapping" if isinstance(value, dict) else f"{article} list"
    return clipped(text or "")


def _reason(fault: Mapping[str, Any]) -> str:
    """What a validator of the spec language said."""
    return str(fault["ctx"]["error"]) if "error" in fault.get("ctx", {}) else str(fault["msg"])


def _other_name(name: Any, fault: Callable[[str], str | None]) -> str | None:
    other = names.usable(name, fault) if isinstance(name, str) else None
    return f"write {other}" if other else None


def _usual_slip(loc: Loc, value: Any, kind: FieldType) -> str | None:
    """The hint for a scalar in place of a mapping of kinds, or quotes round a number."""
    field = loc[-1] if loc else ""
    if kind.models and isinstance(value, str):
        tag = closest(value, kind.models)
        return f"write {field}: {{kind: {tag}}}" if tag else None
    if kind.models and value is None and field in kind.models:
        return f"write {field}: {{}}"
    if kind.origin is dict and isinstance(value, list):
        return f"write {field} as a mapping, `prefill: {{}}`"
    words = {member.annotation for member in kind.members}
    if isinstance(value, str) and words & {int, float} and value.lstrip("+-")[:1].isdigit():
        return "remove the quotes"
    if isinstance(value, float) and value.is_integer() and int in words:
        return f"write {int(value)}"
    return "remove the quotes" if value in ("true", "false") and bool in words else None
