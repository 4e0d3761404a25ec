"""Small latent layers and their weights, for the tests of the algebra and of its reference."""

from __future__ import annotations

from typing import Any

import torch

from kgen.spec.model import SpecFile

# kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim: released widths over 8 (rounded up to 8), and one whole.
WIDTHS = [(64, 8, 16, 16), (32, 8, 8, 8), (64, 8, 24, 32), (64, 16, 8, 24), (32, 16, 24, 8), (512, 64, 128, 128)]


def make_latent(
    widths: tuple[int, int, int, int] = WIDTHS[0], *, heads: int = 3, mask: dict[str, Any] | None = None, **layer: Any
) -> SpecFile:
    """A latent layer; further keywords go to its ``attention``."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    attention = {
        "kind": "latent",
        "num_qo_heads": heads,
        **dict(zip(names, widths, strict=True)),
        "mask": mask or {"kind": "causal"},
        **layer,
    }
    data = {"name": "latent", "attention": attention, "dtype": "bfloat16", "kernels": {"prefill": {}, "decode": {}}}
    return SpecFile.model_validate(data)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal values; a matrix is scaled so that a product with it keeps the magnitude."""
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)
