"""What the tests of ``kgen import`` share: config.json files, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from kgen.cli import app


def config(model_type: str, heads: int, kv_heads: int | None, hidden: int, **more: Any) -> dict[str, Any]:
    """A config.json of the common keys."""
    common = {"model_type": model_type, "num_attention_heads": heads, "hidden_size": hidden, "torch_dtype": "bfloat16"}
    return {**common, **({} if kv_heads is None else {"num_key_value_heads": kv_heads}), **more}


def yarn(factor: float, all_dim: float) -> dict[str, Any]:
    return {"type": "yarn", "factor": factor, "mscale": all_dim, "mscale_all_dim": all_dim, "beta_fast": 32}


def mla(model_type: str, heads: int, rank: int, nope: int, rope: int, v: int | None, **more: Any) -> dict[str, Any]:
    widths = {"kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope}
    widths |= {} if v is None else {"v_head_dim": v}
    return config(model_type, heads, heads, **{"hidden": 7168, **widths, **more})


def kgen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def put(path: str, facts: object) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(facts if isinstance(facts, str) else json.dumps(facts, indent=2))
    return path


MISTRAL = config("mistral", 32, 8, 4096, sliding_window=4096, num_hidden_layers=32)


def comment(text: str) -> str:
    """The comment of a spec, in one line."""
    return " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
