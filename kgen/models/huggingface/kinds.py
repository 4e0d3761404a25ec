"""Which kind of attention each layer of a model has, in the words of ``layer_types``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.diagnostics import clipped, joined
from kgen.models.huggingface.facts import MOST_LAYERS, Fact, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.models.huggingface.facts import Level

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
ATTENTION = (FULL, SLIDING, CHUNKED)
NOT_ATTENTION = ("linear_attention", "conv", "mlp", "moe")
_OLDER_NAMES = {"attention": FULL, "mamba": "linear_attention"}


@dataclass(frozen=True)
class Kinds:
    """The kind of each layer, and the words that say which keys told it.

    ``counted`` is false where the file does not say how many layers there are, all of one kind.
    """

    names: tuple[str, ...]
    words: str = ""
    counted: bool = True

    def attending(self) -> tuple[str, ...]:
        """The kinds of attention, in the order of their first layers."""
        return tuple(dict.fromkeys(name for name in self.names if name in ATTENTION))

    def where(self, kind: str) -> str:
        """The layers of a kind: ``5, 11, 17 (3 of 18)``; empty where every layer is of it."""
        if set(self.names) == {kind}:
            return ""
        indices = [index for index, name in enumerate(self.names) if name == kind]
        return f"{_ranges(indices)} ({len(indices)} of {len(self.names)})"

    def others(self) -> str:
        """The layers that do not attend: ``0-2 are linear_attention``; empty where there are none."""
        found = [name for name in dict.fromkeys(self.names) if name not in ATTENTION]
        return ", ".join(f"layers {self.where(name) or f'0-{len(self.names) - 1}'} are {name}" for name in found)


Rule = Callable[["Level"], Kinds]


def every(level: Level) -> Kinds:
    """All layers attend to every key that their mask leaves."""
    count = level.known_layers()
    return Kinds((FULL,) * (count or 1), counted=count is not None)


def windowed(level: Level) -> Kinds:
    """All layers have the window ``sliding_window``, none where it is null."""
    window = level.optional_number("sliding_window")
    count = level.known_layers()
    names = (SLIDING if window else FULL,) * (count or 1)
    return Kinds(names, "" if window else "sliding_window null", count is not None)


def switched_window(level: Level) -> Kinds:
    """As ``windowed``, where ``use_sliding_window`` is true."""
    if level.flag("use_sliding_window").value:
        return windowed(level)
    level.ignore("sliding_window")
    return _off(level)


def window_from_layer(level: Level) -> Kinds:
    """Layers from ``max_window_layers`` on have the window, where ``use_sliding_window`` is true (Qwen2)."""
    return _from_layer(level) if level.flag("use_sliding_window").value else _off(level)


def window_from_layer_always(level: Level) -> Kinds:
    """Layers from ``max_window_layers`` on have the window (dots.llm1)."""
    return _from_layer(level)


def window_below_layer(level: Level) -> Kinds:
    """Every second layer below ``max_window_layers`` has the window, where it is switched on (Qwen2-MoE)."""
    if not level.flag("use_sliding_window").value:
        return _off(level)
    first = level.setting("max_window_layers")
    names = tuple(SLIDING if i % 2 == 0 and i < first.value else FULL for i in range(level.layers()))
    return Kinds(names, first.words)


def window_without_rope(level: Level) -> Kinds:
    """Layers without rotary embedding have the window, where it is switched on (SmolLM3)."""
    rope = _has_rope(level)
    if not level.flag("use_sliding_window").value or level.optional_number("sliding_window") is None:
        return _off(level)
    return Kinds(tuple(FULL if has else SLIDING for has in rope.value), rope.words)


def chunks_with_rope(level: Level) -> Kinds:
    """Layers with rotary embedding attend inside chunks; those without attend to all (Llama 4)."""
    rope = _has_rope(level)
    chunk = level.optional_number("attention_chunk_size")
    return Kinds(tuple(CHUNKED if has and chunk else FULL for has in rope.value), rope.words)


def pattern(period: int | None, key: str | None = None) -> Rule:
    """The last of each ``period`` layers is full, the others have the window; ``key`` states another period."""

    def rule(level: Level) -> Kinds:
        stated = level.optional_number(key) if key else None
        if stated is None and period is None:
            refuse("KG503", level.loc, f"layer_types is missing, and no {key} tells it", "add layer_types")
        every_nth = stated.value if stated else period
        assert every_nth is not None
        names = tuple(SLIDING if (i + 1) % every_nth else FULL for i in range(level.layers()))
        words = stated.words if stated else f"the model's code (the last of each {every_nth} is full)"
        return Kinds(names, words)

    return rule


def first_of(period: int, key: str | None = None) -> Rule:
    """The first of each ``period`` layers is full, the others have the window."""

    def rule(level: Level) -> Kinds:
        stated = level.optional_number(key) if key else None
        step = stated.value if stated else period
        names = tuple(SLIDING if i % step else FULL for i in range(level.layers()))
        words = stated.words if stated else f"the model's code (the first of each {step} is full)"
        return Kinds(names, words)

    return rule


def pattern_and_last(level: Level) -> Kinds:
    """Every sixth layer and the last are full (Gemma 4)."""
    found = pattern(6)(level)
    return Kinds((*found.names[:-1], FULL), "the model's code (the last of each 6 is full, and the last of all)")


def pattern_and_first(level: Level) -> Kinds:
    """The first layer and every sixth are full (MiMo-V2-Flash)."""
    found = pattern(6)(level)
    return Kinds((FULL, *found.names[1:]), "the model's code (the last of each 6 is full, and the first of all)")


def mixed(period: int, key: str | None = None, *, attends_last: bool = True) -> Rule:
    """One of each ``period`` layers attends, the last or the first; the others are linear attention."""

    def rule(level: Level) -> Kinds:
        stated = level.optional_number(key) if key else None
        step = stated.value if stated else period
        shift = 1 if attends_last else 0
        names = tuple("linear_attention" if (i + shift) % step else FULL for i in range(level.layers()))
        which = "last" if attends_last else "first"
        return Kinds(names, stated.words if stated else f"the model's code (the {which} of each {step} attends)")

    return rule


def period_and_offset(level: Level) -> Kinds:
    """Layer ``attn_layer_offset`` of each ``attn_layer_period`` attends (Jamba)."""
    period = level.setting("attn_layer_period")
    offset = level.optional_number("attn_layer_offset", least=0)
    if offset is None or offset.value >= period.value:
        refuse("KG502", period.loc, f"attn_layer_offset must be below attn_layer_period, which is {period.value}")
    names = tuple(FULL if i % period.value == offset.value else "linear_attention" for i in range(level.layers()))
    return Kinds(names, f"{period.words}, {offset.words}")


def indices(key: str, otherwise: str, *, missing: str) -> Rule:
    """The layers that ``key`` lists attend; where it is missing all are ``missing``."""

    def rule(level: Level) -> Kinds:
        listed, count = level.sequence(key), level.layers()
        if listed is None:
            return Kinds((missing,) * count, f"{key} null")
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < count for i in listed.value):
            refuse("KG502", listed.loc, f"{key} must list layers from 0 to {count - 1}")
        return Kinds(tuple(FULL if i in listed.value else otherwise for i in range(count)), key)

    return rule


def hybrid_pattern(level: Level) -> Kinds:
    """``hybrid_override_pattern``: a letter a layer (Nemotron-H)."""
    key = "hybrid_override_pattern"
    letters = {"M": "linear_attention", "E": "moe", "*": FULL, "-": "mlp"}
    fact = level.find(key)
    if fact is None or not isinstance(fact.value, str) or not fact.value:
        refuse("KG503", level.loc, f"neither layers_block_type nor {key} tells which layers attend", f"add {key}")
    wrong = [letter for letter in fact.value if letter not in letters]
    if wrong or len(fact.value) > MOST_LAYERS:
        refuse("KG502", fact.loc, f"{key} holds {clipped(wrong[0] if wrong else fact.value)!r}", "letters: M E * -")
    return Kinds(tuple(letters[letter] for letter in fact.value), key)


def global_and_local(level: Level) -> Kinds:
    """``attention_types``: pairs of a list of global and local, and how often it is repeated (GPT-Neo)."""
    names = {"global": FULL, "local": SLIDING}
    listed = level.sequence("attention_layers")
    types = level.find("attention_types")
    if listed is not None:
        flat = list(listed.value)
    elif types is not None and types.value is not None:
        flat = _repeated(types)
    else:
        refuse("KG503", level.loc, "attention_types is missing", "add attention_types")
    if not flat or any(not isinstance(one, str) or one not in names for one in flat):
        refuse("KG502", level.place("attention_types"), "attention_types must be lists of global and local, repeated")
    return Kinds(tuple(names[one] for one in flat), "attention_types")


def listed_or(rule: Rule, *, keys: Sequence[str] = ("layer_types",)) -> Rule:
    """``layer_types`` where the file has it, else what ``rule`` finds."""

    def listed(level: Level) -> Kinds:
        fact = level.sequence(*keys)
        if fact is None:
            return rule(level)
        # Whatever else tells the kinds is not read then.
        level.ignore("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layers", "max_window_layers")
        if not level.flag("use_sliding_window").value and SLIDING not in fact.value:
            level.ignore("sliding_window")
        names = tuple(_OLDER_NAMES.get(name, name) if isinstance(name, str) else name for name in fact.value)
        for index, name in enumerate(names):
            if not isinstance(name, str) or name not in (*ATTENTION, *NOT_ATTENTION):
                known = joined([*ATTENTION, *NOT_ATTENTION])
                message = f"{fact.words}[{index}] is {clipped(str(name))}, a kind of layer that kgen does not know"
                refuse("KG505", fact.loc, message, f"known are {known}")
        count = level.known_layers()
        if not names or (count is not None and count != len(names)):
            message = f"{fact.words} lists {len(names)} layers, and num_hidden_layers is {count}"
            refuse("KG502", fact.loc, message)
        return Kinds(names, fact.words)

    return listed


def _off(level: Level) -> Kinds:
    level.ignore("sliding_window")
    count = level.known_layers()
    return Kinds((FULL,) * (count or 1), "use_sliding_window false", count is not None)


def _from_layer(level: Level) -> Kinds:
    window = level.optional_number("sliding_window")
    if window is None:
        return windowed(level)
    first = level.optional_number("max_window_layers", least=0)
    if first is None:
        refuse("KG503", level.loc, "max_window_layers is missing, from which layer on there is a window")
    names = tuple(SLIDING if i >= first.value else FULL for i in range(level.layers()))
    return Kinds(names, first.words)


def _has_rope(level: Level) -> Fact:
    """Whether each layer has rotary embedding, which by itself does not change what a kernel computes."""
    listed, count = level.sequence("no_rope_layers"), level.layers()
    if listed is None or not listed.value:
        step = level.setting("no_rope_layer_interval")
        return Fact(tuple((i + 1) % step.value != 0 for i in range(count)), step.words, step.loc)
    if len(listed.value) != count or any(one not in (0, 1) for one in listed.value):
        refuse(
            "KG502",
            listed.loc,
            f"no_rope_layers must be {count} numbers, 1 for a layer with rotary embedding, 0 without",
        )
    return Fact(tuple(bool(one) for one in listed.value), "no_rope_layers", listed.loc)


def _repeated(types: Fact) -> list[object]:
    flat: list[object] = []
    try:
        for names, times in types.value:
            if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times * len(names) <= MOST_LAYERS:
                raise ValueError
            flat += list(names) * times
    except (TypeError, ValueError):
        refuse("KG502", types.loc, 'attention_types must be pairs such as [["global", "local"], 12]')
    return flat


def _ranges(indices: Sequence[int]) -> str:
    """``0-4, 6, 8-9``."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
