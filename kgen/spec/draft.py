"""A copy of a spec's data that is repaired while it is checked.

Validation stops where a ``kind`` is misspelt or a field is missing, and rules
across fields need a whole spec. So that one slip does not hide the others, the
checker goes on with what the slip was probably meant to be, or without the part
it is in. A draft is only ever used to find more problems: a spec with a problem
is never loaded.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kgen.spec.fields import at, type_at
from kgen.spec.model import KERNEL_KINDS

if TYPE_CHECKING:
    from kgen.diagnostics import Loc


class Draft:
    """The data, and the repairs to be applied before the next round."""

    def __init__(self, data: Any) -> None:
        self.data = copy.deepcopy(data)
        self._written: dict[Loc, Loc] = {}
        self._left_out: set[Loc] = set()
        self._is_changed = False
        kernels = at(self.data, ("kernels",))
        for name, kernel in kernels.items() if isinstance(kernels, dict) else ():
            if isinstance(kernel, dict) and name in KERNEL_KINDS:
                kernel.setdefault("kind", name)

    def written(self, loc: Loc) -> Loc:
        """``loc`` as the file has it, before fields were renamed."""
        for end in range(len(loc), 0, -1):
            if loc[:end] in self._written:
                return (*self._written[loc[:end]], *loc[end:])
        return loc

    def rename(self, loc: Loc, name: str) -> None:
        """The key was meant to be ``name``, unless that is there already."""
        mapping = at(self.data, loc[:-1])
        value = mapping.pop(loc[-1])
        if name not in mapping:
            mapping[name] = value
            self._written[(*loc[:-1], name)] = loc
        self._is_changed = True

    def remove(self, loc: Loc) -> None:
        """The key is no field of its mapping."""
        del at(self.data, loc[:-1])[loc[-1]]
        self._is_changed = True

    def replace(self, loc: Loc, value: str) -> None:
        """The value was meant to be ``value``."""
        at(self.data, loc[:-1])[loc[-1]] = value
        self._is_changed = True

    def leave_out(self, loc: Loc) -> None:
        """Go on without the part at ``loc``: its whole kernel or list, or the optional field.

        What cannot be left out stays, and the spec stays invalid.
        """
        if loc[:1] == ("kernels",) and len(loc) > 1:
            loc = loc[:2]
        elif loc and isinstance(loc[-1], int):
            loc = loc[:-1]  # without the entry alone, the others would change places
        parent = at(self.data, loc[:-1]) if loc else None
        if isinstance(parent, dict) and loc[-1] in parent and not self._is_required(loc):
            self._left_out.add(loc)

    def commit(self) -> bool:
        """Apply the repairs; true if another round can find more."""
        kernels = {str(loc[1]) for loc in self._left_out if loc[0] == "kernels"}
        if kernels:
            self._leave_out_kernels(kernels)
        for loc in self._left_out:
            if loc[0] != "kernels":
                del at(self.data, loc[:-1])[loc[-1]]
                self._is_changed = True
        goes_on, self._is_changed = self._is_changed, False
        self._left_out.clear()
        return goes_on

    def _leave_out_kernels(self, names: set[str]) -> None:
        """Remove kernels, if some remain, and gradients whose prefill is removed: their fault would be ours."""
        kernels = at(self.data, ("kernels",))
        rest = {name: kernel for name, kernel in kernels.items() if name not in names}
        kinds = {name: at(kernel, ("kind",)) for name, kernel in rest.items()}
        if "prefill" not in kinds.values():
            rest = {name: kernel for name, kernel in rest.items() if kinds[name] != "backward"}
        if rest:
            self.data["kernels"] = rest
            self._is_changed = True

    def _is_required(self, loc: Loc) -> bool:
        owner = type_at(loc[:-1], self.data)
        if owner is None:
            return True
        return owner.is_model and bool(owner.annotation.model_fields[str(loc[-1])].is_required())
