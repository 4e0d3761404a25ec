"""Values of a ``config.json`` with the keys that they came from.

A key that is missing has the value that the configuration class of its model type in
``transformers`` gives it (``defaults.json``). Of nested configurations that library
writes only what differs from there; the sizes of a configuration that stands alone are
always written, so there they must be stated. A comment names each default as one.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kgen.diagnostics import Loc, Problem, clipped

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2**31 - 1  # of a count or a width
MOST_LAYERS = 4096
_LARGEST = 1e300  # of a real number, so that Python can make it a float
BY_DEFAULT = "by default"  # in the words of a fact that the file does not state

# Keys that change attention in some model. One that is set, and that the rules of a model type do not read, is refused.
_CHANGES_ATTENTION = frozenset(
    (
        *("add_cross_attention", "attention_multiplier", "attention_types", "attention_value_scale"),
        *("attn_scale", "head_dim", "index_topk", "kv_lora_rank", "layer_types", "layers_block_type"),
        *("local_attention", "multi_query", "n_head_kv", "no_rope_layers", "num_key_value_heads", "num_kv_heads"),
        *("per_layer_config", "prefix_lm", "qk_nope_head_dim", "query_pre_attn_scalar", "relative_attention"),
        *("relative_attention_num_buckets", "scale_attn_by_inverse_layer_idx", "use_bidirectional_attention"),
        "v_head_dim",
    )
)
_SOUNDS_LIKE_IT = re.compile(r"alibi|attention_chunk|attn_logit|sink|sliding|soft_?cap|sparse_att|window")
_HARMLESS = frozenset(("final_logit_softcapping", "max_window_layers"))


class RefusedError(Exception):
    """The configuration cannot become specs, for the reason in ``problem`` (a path of keys of the file)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


def refuse(code: str, loc: Loc, message: str, advice: str | None = None) -> NoReturn:
    """Raise ``RefusedError`` for the key at ``loc``."""
    raise RefusedError(Problem(code, loc, message, advice, "key"))


@dataclass(frozen=True)
class Fact:
    """A value, the words of a comment that say where it came from, and the path of the key that decided it."""

    value: Any
    words: str
    loc: Loc


class Level:
    """One object of a ``config.json``: the file itself, or a nested ``text_config`` or ``vision_config``.

    It keeps account of the keys that were read, so that ``done`` can refuse those that were not and change attention.
    """

    def __init__(self, data: Mapping[str, Any], model_type: str, loc: Loc = ()) -> None:
        self.data = data
        self.model_type = model_type
        self.loc = loc
        self._defaults = defaults().get(model_type, {})
        self._read: set[str] = set()

    def place(self, key: str) -> Loc:
        """The path of ``key`` in the file."""
        return (*self.loc, key)

    def find(self, *keys: str, essential: bool = False) -> Fact | None:
        """What the first of ``keys`` says that is there (the others are older names), else its default.

        ``None`` where neither is there, and a fact with the value ``None`` where null is written.
        """
        self._read.update(keys)
        stated = [key for key in keys if key in self.data]
        for key in stated[1:]:
            if self.data[key] != self.data[stated[0]]:
                message = f"{key} is {_shown(self.data[key])}, and {stated[0]} is {_shown(self.data[stated[0]])}"
                refuse("KG502", self.place(key), message, "they mean the same; keep one")
        if stated:
            value = self.data[stated[0]]
            return Fact(value, f"{stated[0]} {_shown(value)}", self.place(stated[0]))
        if keys[0] in self._defaults and not (essential and not self.loc):
            value = self._defaults[keys[0]]
            return Fact(value, f"{keys[0]} {_shown(value)} {BY_DEFAULT}", self.loc)
        return None

    def number(self, *keys: str, most: int = MOST) -> Fact:
        """A size: a whole number above 0 that must be there, and that a file of its own must state."""
        return self._required(self.find(*keys, essential=True), keys[0], most)

    def setting(self, key: str) -> Fact:
        """A whole number above 0 that must be there, stated or by default."""
        return self._required(self.find(key), key, MOST)

    def _required(self, fact: Fact | None, key: str, most: int) -> Fact:
        if fact is None or fact.value is None:
            message = f"{key} is missing, and attention of {self.model_type} cannot be told without it"
            refuse("KG503", fact.loc if fact else self.loc, message, f"add {key}")
        return _whole(fact, 1, most)

    def optional_number(self, *keys: str, least: int = 1, most: int = MOST) -> Fact | None:
        """A whole number, ``None`` where the key is missing without a default, or null."""
        fact = self.find(*keys)
        return None if fact is None or fact.value is None else _whole(fact, least, most)

    def real(self, key: str) -> Fact | None:
        """A finite number above 0, ``None`` where the key is missing without a default, or null."""
        fact = self.find(key)
        if fact is None or fact.value is None:
            return None
        value = fact.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            refuse("KG502", fact.loc, f"{_keyed(fact)} is {_shown(value)}, expected a number above 0")
        return fact

    def flag(self, key: str) -> Fact:
        """True or false; false where the key is missing without a default, or null."""
        fact = self.find(key)
        if fact is None or fact.value is None:
            return Fact(False, f"no {key}", self.loc)
        if not isinstance(fact.value, bool):
            refuse("KG502", fact.loc, f"{key} is {_shown(fact.value)}, expected true or false")
        return fact

    def sequence(self, *keys: str) -> Fact | None:
        """A list, as a tuple; ``None`` where the key is missing without a default, or null."""
        fact = self.find(*keys)
        if fact is None or fact.value is None:
            return None
        if not isinstance(fact.value, list) or len(fact.value) > MOST_LAYERS:
            message = f"{_keyed(fact)} is {_shown(fact.value)}, expected a list of at most {MOST_LAYERS}"
            refuse("KG502", fact.loc, message)
        return Fact(tuple(fact.value), _keyed(fact), fact.loc)

    def nested(self, key: str) -> Level | None:
        """The object at ``key``; ``None`` where it is missing or null."""
        self._read.add(key)
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            refuse("KG502", self.place(key), f"{key} is {_shown(value)}, expected an object")
        return Level(value, self.model_type, self.place(key))

    def layers(self) -> int:
        """How many layers there are."""
        keys = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        known = next((key for key in keys if key in self.data or key in self._defaults), keys[0])
        return int(self.number(known, most=MOST_LAYERS).value)

    def known_layers(self) -> int | None:
        """How many layers there are, ``None`` where no key tells."""
        keys = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        return self.layers() if any(key in self.data for key in keys) else None

    def ignore(self, *keys: str) -> None:
        """Keys that the model's code does not read either, or that say again what another one says."""
        self._read.update(keys)

    def require(self, key: str, *allowed: object, why: str) -> None:
        """Refuse any value of ``key`` but ``allowed`` ones, null and a missing key."""
        fact = self.find(key)
        if fact is not None and fact.value is not None and fact.value not in allowed:
            refuse("KG505", fact.loc, f"{key} is {_shown(fact.value)}: {why}", _BY_HAND)

    def done(self) -> None:
        """Refuse a key that was not read and changes attention."""
        self.require("is_causal", True, why=f"the layers of {self.model_type} would see keys after their position")
        for key, value in self.data.items():
            if key in self._read or key in _HARMLESS or value in (None, False, 0, "", [], {}):
                continue
            if key in _CHANGES_ATTENTION or _SOUNDS_LIKE_IT.search(key):
                message = f"{clipped(key)} is {_shown(value)}, which kgen does not know of model type {self.model_type}"
                advice = "remove it if the model's attention does not depend on it, or write the spec by hand"
                refuse("KG505", self.place(key), message, advice)


_BY_HAND = "write the spec by hand: `kgen init` begins one"


@functools.cache
def defaults() -> dict[str, dict[str, Any]]:
    """Values of keys that a file leaves out, by model type."""
    table: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("defaults.json").read_text("utf-8"))
    return {name: {**table[row["like"]], **row} if "like" in row else row for name, row in table.items()}


def _whole(fact: Fact, least: int, most: int) -> Fact:
    value = fact.value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        expected = (
            f"a whole number above {least - 1}" if value.__class__ is not int or value < least else f"<= {most:,}"
        )
        refuse("KG502", fact.loc, f"{_keyed(fact)} is {_shown(value)}, expected {expected}")
    return fact


def _keyed(fact: Fact) -> str:
    return fact.words.partition(" ")[0]


def _shown(value: object) -> str:
    """A value as JSON, cut where it is long."""
    if isinstance(value, list | dict):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    return clipped(json.dumps(value))
