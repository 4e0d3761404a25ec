"""One latent layer through its generated kernels: with keys and values made of the latent for each head, and absorbed.

A layer's weights are drawn, and its result is computed four ways: by hand in float64 from the checkpoint's matrices, by
the generated expanded prefill with one query token a request, by a generated decode over materialised keys and values
of each head, and by the generated absorbed decode over the latents. All must agree, after the output projection.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from kgen.runtime.mla import LatentWeights, absorb, expand
from kgen.spec import views
from kgen.spec.loader import load_text
from kgen.spec.model import SpecFile
from kgen.verify.interpreter import interpreting
from tests.latent_support import WIDTHS, make_latent
from tests.test_latent_reference import Layer, by_hand, make_layer
from tests.verify_support import generate

pytestmark = pytest.mark.triton

TOKENS = 70  # more than a tile of keys
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Roundings of the inputs, of P and of the output, relative to results of about 1.
LIMITS = {"float32": 2e-5, "bfloat16": 3e-2}

Result = tuple[torch.Tensor, torch.Tensor]


def kernels_of(spec: SpecFile, dtype: str, folder: Path) -> dict[str, ModuleType]:
    """The generated kernels of a latent layer, and ``materialised``: decode of the same layer, expanded."""
    shared = {"dtype": dtype, "targets": ["sm_90"]}
    latent = {
        "name": "latent",
        "attention": spec.attention.model_dump(mode="json"),
        "kernels": {
            "prefill": {},
            "decode": {"num_splits": 3},
            "paged": {"kind": "decode", "kv": {"kind": "paged", "page_size": 16}},
        },
    }
    heads = {
        "name": "heads",
        "attention": views.expanded(spec.attention).model_dump(mode="json"),
        "kernels": {"materialised": {"kind": "decode"}},
    }
    found = {}
    for document in (latent, heads):
        loaded = load_text(yaml.safe_dump({**document, **shared}), f"specs/{document['name']}.yaml")
        found |= generate(loaded, folder)
    return found


def materialised(layer: Layer, weights: LatentWeights, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k and v of each head, as the expanded kernels take them: ``[B, H, 1 or N, nope + rope or v]``."""
    k, v = expand(layer.c, weights)
    k = torch.cat([k, layer.k_pe.unsqueeze(1).expand(*k.shape[:-1], -1)], -1)
    return tuple(x.to(dtype) for x in (torch.cat([layer.q_nope, layer.q_pe], -1), k, v))


def by_prefill(modules: dict[str, ModuleType], layer: Layer, weights: LatentWeights, dtype: torch.dtype) -> Result:
    """All keys of the cache: ``out[B, D]`` and ``lse[B, H]``."""
    out, lse = modules["prefill"].attention(*materialised(layer, weights, dtype), return_lse=True)
    return projected(out[:, :, 0], weights.W_O), lse[:, :, 0]


def by_materialised(
    modules: dict[str, ModuleType],
    layer: Layer,
    weights: LatentWeights,
    dtype: torch.dtype,
    seq_lens: torch.Tensor,
) -> Result:
    q, k, v = materialised(layer, weights, dtype)
    out, lse = modules["materialised"].attention(q[:, :, 0], k, v, seq_lens=seq_lens, return_lse=True)
    return projected(out, weights.W_O), lse


def by_absorbed(
    modules: dict[str, ModuleType],
    layer: Layer,
    weights: LatentWeights,
    dtype: torch.dtype,
    seq_lens: torch.Tensor,
    kernel: str = "decode",
) -> Result:
    W_Q_abs, W_O_abs = absorb(weights)
    q = torch.einsum("hrx,bx->bhr", W_Q_abs, layer.x[:, 0])
    cache: list[torch.Tensor] = [layer.c, layer.k_pe]
    extra: dict[str, Any] = {"seq_lens": seq_lens, "return_lse": True}
    if kernel == "paged":
        pages = -(-TOKENS // 16)
        extra["block_table"] = torch.randperm(len(layer.c) * pages, dtype=torch.int32).reshape(len(layer.c), pages)
        cache = [in_pages(x, extra["block_table"]) for x in cache]
    queries = (x.to(dtype) for x in (q, layer.q_pe[:, :, 0]))
    out, lse = modules[kernel].attention(*queries, *(x.to(dtype) for x in cache), **extra)
    return projected(out, W_O_abs), lse


def in_pages(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``x[B, N, width]`` in the pages of ``table``; rows of no token hold NaN."""
    batch, tokens, width = x.shape
    padded = torch.full((batch, table.shape[1] * 16, width), torch.nan, dtype=x.dtype)
    padded[:, :tokens] = x
    pool = torch.empty(table.numel(), 16, width, dtype=x.dtype)
    pool[table.flatten().long()] = padded.reshape(-1, 16, width)
    return pool


def projected(out: torch.Tensor, W_O: torch.Tensor) -> torch.Tensor:
    """Heads' outputs ``out[B, H, width]`` through ``W_O[D, H, width]``: each head has its block of columns."""
    return torch.einsum("dhw,bhw->bd", W_O, out.double())


def assert_agree(results: dict[str, Result], limit: float) -> None:
    want, want_lse = results["by hand"]
    assert want.abs().max() > 0.3
    for name, (out, lse) in results.items():
        torch.testing.assert_close(out, want, atol=limit, rtol=0, msg=lambda m, name=name: f"{name}: {m}")
        torch.testing.assert_close(lse.double(), want_lse, atol=limit, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


def hand(layer: Layer, length: int = TOKENS) -> Result:
    """The layer over the first ``length`` keys of each request."""
    short = Layer(**{**vars(layer), "c": layer.c[:, :length], "k_pe": layer.k_pe[:, :length]})
    out, lse = by_hand(short, "full", layer.spec.attention.sm_scale)
    return out[:, 0], lse[:, :, 0]


@pytest.mark.parametrize("low_rank", [False, True], ids=["simplified", "low_rank"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_all_forms_are_the_layer(dtype: str, low_rank: bool, tmp_path: Path) -> None:
    spec = make_latent(WIDTHS[2], heads=3)
    layer = make_layer(spec, 1, TOKENS, low_rank=low_rank)
    modules, seq_lens = kernels_of(spec, dtype, tmp_path), torch.full((2,), TOKENS, dtype=torch.int32)
    facts = (modules, layer, layer.weights, DTYPES[dtype])
    with interpreting():
        results = {
            "by hand": hand(layer),
            "expanded prefill": by_prefill(*facts),
            "materialised decode": by_materialised(*facts, seq_lens),
            "absorbed decode": by_absorbed(*facts, seq_lens),
            "absorbed decode in pages": by_absorbed(*facts, seq_lens, "paged"),
        }
    assert_agree(results, LIMITS[dtype])


def test_the_widths_of_deepseek(tmp_path: Path) -> None:
    spec = make_latent((512, 64, 128, 128), heads=2, sm_scale=0.1352337788608801)
    layer = make_layer(spec, 1, TOKENS, batch=1)
    modules, seq_lens = kernels_of(spec, "bfloat16", tmp_path), torch.full((1,), TOKENS, dtype=torch.int32)
    facts = (modules, layer, layer.weights, torch.bfloat16)
    with interpreting():
        results = {
            "by hand": hand(layer),
            "expanded prefill": by_prefill(*facts),
            "absorbed decode": by_absorbed(*facts, seq_lens),
        }
    assert_agree(results, LIMITS["bfloat16"])


def test_requests_of_unlike_lengths(tmp_path: Path) -> None:
    spec = make_latent(WIDTHS[0], heads=3)
    layer = make_layer(spec, 1, TOKENS, batch=3)
    modules, lengths = kernels_of(spec, "float32", tmp_path), [TOKENS, 1, 33]
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    facts = (modules, layer, layer.weights, torch.float32, seq_lens)
    alone = [hand(layer, length) for length in lengths]
    with interpreting():
        results = {
            "by hand": (
                torch.stack([out[b] for b, (out, _) in enumerate(alone)]),
                torch.stack([lse[b] for b, (_, lse) in enumerate(alone)]),
            ),
            "materialised decode": by_materialised(*facts),
            "absorbed decode": by_absorbed(*facts),
            "absorbed decode in pages": by_absorbed(*facts, "paged"),
        }
    assert_agree(results, LIMITS["float32"])


def test_processes_that_hold_some_of_the_heads_sum_up_to_the_layer(tmp_path: Path) -> None:
    whole, part = make_latent(heads=4), make_latent(heads=2)
    layer = make_layer(whole, 1, TOKENS)
    modules, seq_lens = kernels_of(part, "float32", tmp_path), torch.full((2,), TOKENS, dtype=torch.int32)
    want, want_lse = hand(layer)
    sums = {name: torch.zeros_like(want) for name in ("absorbed", "materialised")}
    lses: dict[str, list[torch.Tensor]] = {name: [] for name in sums}
    for heads in (slice(0, 2), slice(2, 4)):
        weights = LatentWeights(
            *(getattr(layer.weights, name)[heads] for name in ("W_Q", "W_UK", "W_UV")), layer.weights.W_O[:, heads]
        )
        held = Layer(**{**vars(layer), "q_nope": layer.q_nope[:, heads], "q_pe": layer.q_pe[:, heads]})
        with interpreting():
            for name, form in (("absorbed", by_absorbed), ("materialised", by_materialised)):
                out, lse = form(modules, held, weights, torch.float32, seq_lens)
                sums[name] += out
                lses[name].append(lse)
    results = {name: (total, torch.cat(lses[name], 1)) for name, total in sums.items()}
    assert_agree({"by hand": (want, want_lse), **results}, LIMITS["float32"])


@pytest.mark.parametrize("name", ["W_UK", "W_UV"])
def test_heads_that_are_mixed_up_are_noticed(name: str, tmp_path: Path) -> None:
    spec = make_latent(heads=3)
    layer = make_layer(spec, 1, TOKENS)
    wrong = LatentWeights(**{**vars(layer.weights), name: getattr(layer.weights, name).roll(1, 0)})
    modules, seq_lens = kernels_of(spec, "float32", tmp_path), torch.full((2,), TOKENS, dtype=torch.int32)
    with interpreting():
        out, _ = by_absorbed(modules, layer, wrong, torch.float32, seq_lens)
    assert (out - hand(layer)[0]).abs().max() > 1e-2
