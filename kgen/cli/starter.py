"""The spec that ``kgen init`` writes."""

from __future__ import annotations

from pathlib import Path

from kgen.errors import InputError

_STARTER = """\
# What the attention of one layer type is. kgen decides how it runs.
#   kgen build {path}      writes generated/{name}/
#   kgen explain {path}    tells every choice and why
name: {name}
attention:
  kind: grouped                 # MHA, GQA and MQA: query heads share KV heads
  num_qo_heads: 32
  num_kv_heads: 8               # divides num_qo_heads
  head_dim_qk: 128              # 8 to 512, a multiple of 8; head_dim_v defaults to it
  # sm_scale: 0.0883883476      # default head_dim_qk ** -0.5
  mask: {{kind: causal}}          # full | causal | sliding_window {{size}} | window {{left, right}}
dtype: bfloat16                 # float16 | bfloat16 | float32
# targets: [sm_80, sm_90]       # default: every GPU kgen knows
kernels:
  prefill: {{layout: bhsd}}       # many query tokens a sequence: q, k, v are [batch, heads, tokens, dim]
  decode: {{num_splits: auto}}    # one new token a request against its KV cache
"""


def write_starter(folder: Path, name: str) -> Path:
    """Write ``<folder>/<name>.yaml`` and return its path; ``InputError`` for a bad name, or a file that is there."""
    from kgen.spec.names import fault

    reason = fault(name)
    if reason:
        raise InputError(f"{name!r} cannot name a spec: {reason}")
    path = folder / f"{name}.yaml"
    text = _STARTER.format(name=name, path=path.as_posix())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} is there already; kgen init overwrites nothing, give another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
