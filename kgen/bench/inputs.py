"""The tensors of a workload: what its kernel is called with, and the same numbers as peers and the check see them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from kgen.bench.storage import HeadsFirst, Packed, Pages, Single, TokensFirst, pages
from kgen.spec import views
from kgen.spec.cache import PagedCache
from kgen.spec.mask import CausalMask, FullMask, SlidingWindowMask, WindowMask
from kgen.spec.model import DecodeKernel, LatentAttention, PrefillKernel

if TYPE_CHECKING:
    from kgen.bench.storage import Storage
    from kgen.bench.workloads import Workload
    from kgen.spec.model import GroupedAttention, SpecFile

SEED = 0


class UnsupportedError(Exception):
    """A kernel or a peer does not state this workload; the message says why."""


@dataclass
class Problem:
    """A workload with its tensors.

    ``layer`` is what the kernel sees: of a latent layer its expanded or absorbed view. ``arguments`` and ``keywords``
    are those of the contract, without ``out``. ``q``, ``k`` and ``v`` are the tensors by parts: a separate rotary
    block is a part of its own; the values of an absorbed layer are the first part of its keys.
    """

    workload: Workload
    spec: SpecFile
    layer: GroupedAttention
    is_decode: bool
    is_absorbed: bool
    q_storage: Storage
    kv_storage: Storage
    q: tuple[torch.Tensor, ...]
    k: tuple[torch.Tensor, ...]
    v: torch.Tensor
    keywords: dict[str, Any]
    sinks: torch.Tensor | None
    _kept: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """Positional arguments: q, q_pe, k, k_pe, v; an absorbed layer has no v."""
        if not self.is_absorbed:
            return (*self.q, *self.k, self.v)
        # One record a token: the arguments have no axis of heads.
        return (*self.q, *(part.squeeze(2) for part in self.k))

    @property
    def device(self) -> torch.device:
        """Where all tensors lie."""
        return self.q[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Of q, k, v and out."""
        return self.q[0].dtype

    @property
    def is_paged(self) -> bool:
        """Keys and values lie in pages."""
        return isinstance(self.kv_storage, Pages)

    def new_out(self) -> torch.Tensor:
        """An output full of NaN, in the shape of the contract."""
        shape = self.q_storage.shape(self.layer.num_qo_heads, self.layer.head_dim_v)
        return torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)

    def queries(self, request: int) -> torch.Tensor:
        """``[Hq, M, Dqk]`` of one request, its rotary block behind the rest."""
        return torch.cat([self.q_storage.rows(part, request) for part in self.q], dim=-1)

    def keys(self, request: int) -> torch.Tensor:
        """``[Hkv, N, Dqk]`` of one request, its rotary block behind the rest."""
        return torch.cat([self.kv_storage.rows(part, request) for part in self.k], dim=-1)

    def values(self, request: int) -> torch.Tensor:
        """``[Hkv, N, Dv]`` of one request."""
        return self.kv_storage.rows(self.v, request)

    def results(self, out: torch.Tensor, request: int) -> torch.Tensor:
        """``[Hq, M, Dv]`` of one request, from an output in the shape of the contract."""
        return self.q_storage.rows(out, request)

    def dense_q(self) -> torch.Tensor:
        """``[B, Hq, M, Dqk]``: the tensor itself where it lies so, else a copy; ``UnsupportedError`` if ragged."""
        if len(set(self.workload.qo_lens)) > 1:
            raise UnsupportedError("takes requests with as many queries each")
        whole = self.q[0] if len(self.q) == 1 else torch.cat(self.q, dim=-1)
        match self.q_storage:
            case HeadsFirst():
                return whole
            case TokensFirst():
                return whole.transpose(1, 2)
            case Single():
                return whole.unsqueeze(2)
        return whole.reshape(self.workload.batch, -1, *whole.shape[1:]).transpose(1, 2)

    def dense_k(self) -> torch.Tensor:
        """``[B, Hkv, capacity, Dqk]``, as ``dense_q``; rows past a request's length are 0 in a copy."""
        return self._dense("k", self.k)

    def dense_v(self) -> torch.Tensor:
        """``[B, Hkv, capacity, Dv]``, as ``dense_k``."""
        return self._dense("v", (self.v,))

    @property
    def is_copied(self) -> bool:
        """``dense_k`` and ``dense_v`` are copies, which lie more simply than the kernel's own tensors."""
        return not isinstance(self.kv_storage, HeadsFirst | TokensFirst)

    def _dense(self, name: str, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if name not in self._kept:
            match self.kv_storage:
                case HeadsFirst() if len(parts) == 1:
                    dense = parts[0]
                case TokensFirst() if len(parts) == 1:
                    dense = parts[0].transpose(1, 2)
                case _:
                    width = sum(part.shape[-1] for part in parts)
                    shape = (self.workload.batch, self.layer.num_kv_heads, self.workload.context, width)
                    dense = parts[0].new_zeros(shape)
                    for request, length in enumerate(self.workload.seq_lens):
                        rows = [self.kv_storage.rows(part, request) for part in parts]
                        dense[request, :, :length] = torch.cat(rows, dim=-1)
            self._kept[name] = dense
        kept: torch.Tensor = self._kept[name]
        return kept

    def packed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q ``[Tq, Hq, D]``, k and v ``[Tk, Hkv, D]``: the tensors themselves where they lie so, else copies."""
        if "packed" not in self._kept:
            requests = range(self.workload.batch)
            is_own = isinstance(self.kv_storage, Packed) and len(self.k) == 1
            self._kept["packed"] = (
                (self.q[0], self.k[0], self.v)
                if is_own
                else tuple(
                    torch.cat([rows(request).transpose(0, 1) for request in requests])
                    for rows in (self.queries, self.keys, self.values)
                )
            )
        q, k, v = self._kept["packed"]
        return q, k, v

    @functools.cached_property
    def band(self) -> tuple[int | None, int | None]:
        """Keys before and after a query's position that it sees; ``None`` is no limit.

        Raises ``UnsupportedError`` for a mask that is no band.
        """
        left: int | None
        match self.layer.mask:
            case FullMask():
                left, right = None, None
            case CausalMask():
                left, right = None, 0
            case SlidingWindowMask(size=size):
                left, right = size - 1, 0
            case WindowMask(left=before, right=after):
                left, right = before if before >= 0 else None, after if after >= 0 else None
            case mask:
                raise UnsupportedError(f"a {mask.kind} mask is no band of keys")
        return left, 0 if self.is_decode else right

    def lengths(self) -> torch.Tensor:
        """``[B]`` int32: keys of each request."""
        return _int32(self.workload.seq_lens, self.device)


def make(spec: SpecFile, workload: Workload, device: torch.device) -> Problem:
    """Tensors for a workload, standard normal and the same on every call.

    Raises ``UnsupportedError`` where the contract has no such call.
    """
    kernel = spec.kernels[workload.kernel]
    if not isinstance(kernel, PrefillKernel | DecodeKernel):
        raise UnsupportedError(f"kernels of kind {kernel.kind} are not timed")
    if getattr(spec.attention, "alibi", False):
        raise UnsupportedError("layers with ALiBi are not timed")
    is_decode = isinstance(kernel, DecodeKernel)
    is_absorbed = is_decode and isinstance(spec.attention, LatentAttention)
    layer = spec.attention
    if isinstance(layer, LatentAttention):
        layer = views.absorbed(layer) if is_decode else views.expanded(layer)
    if isinstance(kernel, DecodeKernel):
        q_storage, kv_storage, keywords = _decode_storage(kernel, workload, device, is_absorbed=is_absorbed)
    else:
        q_storage, kv_storage, keywords = _prefill_storage(kernel, workload, device)
    generator = torch.Generator(device=device).manual_seed(SEED)
    dtype = getattr(torch, spec.dtype)

    def draw(storage: Storage, heads: int, width: int) -> torch.Tensor:
        return torch.randn(storage.shape(heads, width), generator=generator, device=device, dtype=dtype)

    widths = (layer.head_dim_qk,) if layer.head_dim_pe is None else (layer.head_dim_qk, layer.head_dim_pe)
    q = tuple(draw(q_storage, layer.num_qo_heads, width) for width in widths)
    if is_absorbed:
        # One fused record a token, as servers keep it: both arguments are slices of it.
        k = torch.split(draw(kv_storage, 1, sum(widths)), list(widths), dim=-1)
        v = k[0]
    else:
        k = tuple(draw(kv_storage, layer.num_kv_heads, width) for width in widths)
        v = draw(kv_storage, layer.num_kv_heads, layer.head_dim_v)
    sinks = torch.randn(layer.num_qo_heads, generator=generator, device=device) if layer.sinks else None
    return Problem(
        workload=workload,
        spec=spec,
        layer=layer,
        is_decode=is_decode,
        is_absorbed=is_absorbed,
        q_storage=q_storage,
        kv_storage=kv_storage,
        q=q,
        k=tuple(k),
        v=v,
        keywords=keywords | ({} if sinks is None else {"sinks": sinks}),
        sinks=sinks,
    )


def _decode_storage(
    kernel: DecodeKernel, workload: Workload, device: torch.device, *, is_absorbed: bool
) -> tuple[Storage, Storage, dict[str, Any]]:
    """Where q and the cache lie, and the keywords, of a decode call."""
    lengths, batch = workload.seq_lens, workload.batch
    q_storage: Storage = Single(batch) if kernel.q_len == 1 else TokensFirst(workload.qo_lens, kernel.q_len)
    keywords: dict[str, Any] = {"seq_lens": _int32(lengths, device)}
    if isinstance(kernel.kv, PagedCache):
        paged = pages(lengths, kernel.kv.page_size, device)
        return q_storage, paged, {"block_table": paged.table, **keywords}
    # A latent cache has no axis of heads, so that its tokens come first.
    order = TokensFirst if is_absorbed else HeadsFirst
    return q_storage, order(lengths, workload.context), keywords


def _prefill_storage(
    kernel: PrefillKernel, workload: Workload, device: torch.device
) -> tuple[Storage, Storage, dict[str, Any]]:
    """Where q, k and v lie, and the keywords, of a prefill call."""
    qo_lens, kv_lens = workload.qo_lens, workload.seq_lens
    is_paged = isinstance(kernel.kv, PagedCache)
    if kernel.layout == "ragged":
        keywords: dict[str, Any] = {"qo_indptr": _indptr(qo_lens, device), "max_qo_len": workload.queries}
        if isinstance(kernel.kv, PagedCache):
            paged = pages(kv_lens, kernel.kv.page_size, device)
            keywords |= {"block_table": paged.table, "seq_lens": _int32(kv_lens, device)}
            return Packed(qo_lens), paged, keywords
        keywords |= {"kv_indptr": _indptr(kv_lens, device)} if kv_lens != qo_lens else {}
        return Packed(qo_lens), Packed(kv_lens), keywords
    if is_paged:
        raise UnsupportedError("prefill from a paged cache takes layout: ragged")
    if kernel.padded and qo_lens != kv_lens:
        raise UnsupportedError("a padded batch has as many queries as keys")
    if not kernel.padded and not workload.is_uniform:
        raise UnsupportedError(f"layout: {kernel.layout} takes requests of one length, unless padded: true")
    order = HeadsFirst if kernel.layout == "bhsd" else TokensFirst
    keywords = {"seq_lens": _int32(kv_lens, device)} if kernel.padded else {}
    return order(qo_lens, workload.queries), order(kv_lens, workload.context), keywords


def _int32(values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _indptr(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """``[B + 1]`` int32: where each request begins, and where the last one ends."""
    return _int32((0, *accumulate(lengths)), device)
