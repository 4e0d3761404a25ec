"""The numbers of a case: ordinary ones, and those that break a softmax."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kgen.spec import views
from kgen.verify import pages
from kgen.verify.compare import DTYPES
from kgen.verify.poison import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.spec.model import SpecFile
    from kgen.verify.cases import Case


@dataclass(frozen=True)
class Inputs:
    """The tensors of a call, heads before tokens.

    ``q[B, Hq, M, Dqk]``, ``k[B, Hkv, N, Dqk]``, ``v[B, Hkv, N, Dv]``; ``q_pe[B, Hq, M, Dpe]`` and
    ``k_pe[B, Hkv, N, Dpe]`` where the layer has a rotary block of its own. Where the latent is
    key and value, ``v`` is ``k``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_pe: torch.Tensor | None = None
    k_pe: torch.Tensor | None = None

    @property
    def is_absorbed(self) -> bool:
        """Whether one latent a token is key and value."""
        return self.v is self.k

    @property
    def queries(self) -> dict[str, torch.Tensor]:
        """The tensors of queries by name, in the order of a call."""
        return {"q": self.q} if self.q_pe is None else {"q": self.q, "q_pe": self.q_pe}

    @property
    def keys(self) -> dict[str, torch.Tensor]:
        """The tensors of keys and values by name, in the order of a call."""
        rotary = {} if self.k_pe is None else {"k_pe": self.k_pe}
        return {"kv": self.k, **rotary} if self.is_absorbed else {"k": self.k, **rotary, "v": self.v}


Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Draw:
    """What a maker of values draws from: shapes, scale and a seeded generator."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    sm_scale: float
    dtype: torch.dtype
    generator: torch.Generator

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Standard normal numbers, float32."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def signs(self, width: int) -> torch.Tensor:
        """A random pattern of +1 and -1: large dot products without large sums."""
        return torch.randint(0, 2, (width,), generator=self.generator, device=self.generator.device) * 2.0 - 1.0

    def magnitude(self, logit: float) -> float:
        """The size of q's and k's elements whose dot product gives ``logit``."""
        return float((logit / (self.sm_scale * self.q[-1])) ** 0.5)

    def each_key(self, period: int) -> torch.Tensor:
        """Key numbers modulo ``period``, shaped to broadcast over ``k`` and ``v``."""
        return (torch.arange(self.k[2], device=self.generator.device) % period)[:, None]


def _normal(draw: Draw) -> Drawn:
    return draw.normal(draw.q), draw.normal(draw.k), draw.normal(draw.v)


def _beacons(draw: Draw) -> Drawn:
    # Every 7th key outweighs its neighbours e**6 times: a row that sees one too many or too few is far off.
    signs = draw.signs(draw.q[-1]) * draw.magnitude(6.0)
    lit = draw.each_key(7) == 0
    q = 0.1 * draw.normal(draw.q) + signs
    k = 0.1 * draw.normal(draw.k) + lit * signs
    return q, k, draw.normal(draw.v) + 4.0 * lit


def _below(draw: Draw) -> Drawn:
    signs = draw.signs(draw.q[-1]) * draw.magnitude(2e4)
    noise = 0.003 * draw.magnitude(2e4)
    return signs + noise * draw.normal(draw.q), -signs + noise * draw.normal(draw.k), draw.normal(draw.v)


def _huge(draw: Draw) -> Drawn:
    # Two levels of logits, exact in every dtype's range: the weights are uniform over the upper one.
    signs = draw.signs(draw.q[-1]) * draw.magnitude(2.5e5)
    level = torch.where(draw.each_key(3) == 1, 1.0, -1.0)
    return signs.expand(draw.q), (level * signs).expand(draw.k), draw.normal(draw.v)


def _fp16_range(draw: Draw) -> Drawn:
    signs = draw.signs(draw.q[-1]) * 256.0
    level = torch.where(draw.each_key(5) == 2, 1.0, -1.0)
    return signs.expand(draw.q), (level * signs).expand(draw.k), draw.normal(draw.v)


def _dominant(draw: Draw) -> Drawn:
    q, k, v = _normal(draw)
    signs = draw.signs(draw.q[-1]) * draw.magnitude(40.0)
    k[:, :, draw.k[2] // 2 :][:, :, :1] += signs
    return q + signs, k, v


def _equal(draw: Draw) -> Drawn:
    one = draw.signs(draw.q[-1]) * draw.magnitude(2.0)
    return one.expand(draw.q), one.expand(draw.k), draw.normal(draw.v)


def _denormal(draw: Draw) -> Drawn:
    tiny = torch.finfo(draw.dtype).tiny / 8
    q, k, v = _normal(draw)
    return q * tiny, k * tiny, torch.where(draw.each_key(2) == 0, v, v * tiny)


MAKERS: dict[str, Callable[[Draw], Drawn]] = {
    "normal": _normal,
    "beacons": _beacons,
    "below": _below,
    "huge": _huge,
    "fp16_range": _fp16_range,
    "dominant": _dominant,
    "equal": _equal,
    "denormal": _denormal,
}


def make(spec: SpecFile, kernel: str, case: Case, device: torch.device) -> Inputs:
    """The inputs of a case of ``kernel``, in the spec's dtype.

    The same numbers on every run; where the layout shares the memory of an
    axis, all its indices hold the same ones, and requests that share pages have
    the same keys and values there.
    """
    a = views.of_kernel(spec, kernel)
    width = a.head_dim_qk + (a.head_dim_pe or 0)
    generator = torch.Generator(device)
    generator.manual_seed(zlib.crc32(f"{spec.name} {case.name}".encode()))
    draw = Draw(
        q=(case.batch, a.num_qo_heads, case.q_len, width),
        k=(case.batch, a.num_kv_heads, case.kv_len, width),
        v=(case.batch, a.num_kv_heads, case.kv_len, a.head_dim_v),
        sm_scale=a.sm_scale,
        dtype=DTYPES[spec.dtype],
        generator=generator,
    )
    layout = LAYOUTS[case.layout]
    q, k, v = (x.to(draw.dtype) for x in MAKERS[case.values](draw))
    k, v = _shared(k, layout.k.shared), _shared(v, layout.v.shared)
    if case.page_size is not None:
        k, v = pages.as_read(case, k, v)
    # The rotary block is the end of what was drawn: a large product may lie in it or outside.
    q_pe = k_pe = None
    if a.head_dim_pe is not None:
        (q, q_pe), (k, k_pe) = ((x[..., : a.head_dim_qk], x[..., a.head_dim_qk :]) for x in (q, k))
    return Inputs(q, k, k if views.is_absorbed(spec, kernel) else v, q_pe, k_pe)


def _shared(x: torch.Tensor, axes: str) -> torch.Tensor:
    """The first index of each axis of ``bhnd`` in ``axes``, repeated."""
    for dim, axis in enumerate("bhnd"):
        if axis in axes and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1).expand_as(x)
    return x
