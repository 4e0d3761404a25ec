"""Small specs, and modules generated from them, for the tests of the reference and of the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import yaml

from kgen.project import project
from kgen.spec.loader import LoadedSpec, load_text
from kgen.spec.model import SpecFile
from kgen.verify import interpreter
from kgen.verify.modules import load_package
from kgen.verify.run import cases, check_case

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from kgen.verify.run import Result

MASKS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "causal": {"kind": "causal"},
    "sliding_window": {"kind": "sliding_window", "size": 5},
    "window": {"kind": "window", "left": 3, "right": 2},
    "window_left": {"kind": "window", "left": 4, "right": -1},
    "window_right": {"kind": "window", "left": -1, "right": 1},
}


def document(
    *,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    head_dim_v: int | None = None,
    mask: dict[str, Any] | None = None,
    dtype: str = "float16",
    kernels: dict[str, Any] | None = None,
    **attention: Any,
) -> dict[str, Any]:
    """A grouped layer as the data of a spec file; further keywords go to its ``attention``."""
    return {
        "name": "example",
        "attention": {
            "kind": "grouped",
            "num_qo_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim_qk": head_dim,
            "head_dim_v": head_dim if head_dim_v is None else head_dim_v,
            "mask": mask or MASKS["causal"],
            **attention,
        },
        "dtype": dtype,
        "kernels": kernels or {"prefill": {}, "decode": {}},
    }


def make_spec(**facts: Any) -> SpecFile:
    """The validated spec of ``document``."""
    return SpecFile.model_validate(document(**facts))


def load_spec(**facts: Any) -> LoadedSpec:
    """The same as if it came from a file."""
    return load_text(yaml.safe_dump(document(**facts), sort_keys=False), "specs/example.yaml")


def load_latent(
    *,
    heads: int = 2,
    widths: tuple[int, int, int, int] = (32, 8, 16, 16),
    dtype: str = "float16",
    kernels: dict[str, Any] | None = None,
    **attention: Any,
) -> LoadedSpec:
    """A latent layer of kv_lora_rank, rope, nope and v ``widths``, as if it came from a file."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    layer = {"kind": "latent", "num_qo_heads": heads, **dict(zip(names, widths, strict=True)), "mask": MASKS["causal"]}
    data = {"name": "example", "attention": layer | attention, "dtype": dtype, "kernels": kernels or {"decode": {}}}
    return load_text(yaml.safe_dump(data, sort_keys=False), "specs/example.yaml")


def write(loaded: LoadedSpec, root: Path) -> None:
    """Generate ``loaded`` below ``root``."""
    for name, text in project([loaded]).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generate(loaded: LoadedSpec, root: Path) -> dict[str, ModuleType]:
    """Generate ``loaded`` below ``root`` and import it; its modules by kernel."""
    interpreter.require()
    write(loaded, root)
    return load_package(root / loaded.spec.name)


def failures(loaded: LoadedSpec, kernel: str, module: ModuleType, *, first: bool) -> list[Result]:
    """The cases of one kernel that fail in the interpreter; with ``first`` no more than one."""
    device = torch.device("cpu")
    failed = []
    for number, case in enumerate(cases(loaded.spec, kernel, module, device)):
        result = check_case(loaded.spec, kernel, module, case, device, number)
        if not result.passed:
            failed.append(result)
            if first:
                break
    return failed
