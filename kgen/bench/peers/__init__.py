"""Other kernels for the same work, each behind a function that loads it or says why it does not apply."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgen.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from kgen.bench.inputs import Problem


@dataclass(frozen=True)
class Candidate:
    """``call`` computes a problem; ``rows`` gives a request's rows ``[Hq, M, Dv]`` of what it returned.

    ``note`` says in a few words what the candidate was given other than the kernel's own tensors.
    """

    call: Callable[[], torch.Tensor]
    rows: Callable[[torch.Tensor, int], torch.Tensor]
    note: str | None = None


@dataclass(frozen=True)
class Peer:
    """A column: ``place`` is ``module:function`` in this package, which takes a problem and gives a candidate.

    The function raises ``UnsupportedError`` where the peer does not state the problem, and whatever the peer raises
    where it does not load. ``is_baseline`` marks plain kernels of kgen's own writing, which are no competitor.
    ``is_default`` is false for a peer that compiles for minutes. ``is_spare`` is true for one that compiles for
    seconds, shape by shape, and is timed only where no peer before it was.
    """

    name: str
    key: str
    place: str
    is_baseline: bool = False
    is_default: bool = True
    is_spare: bool = False

    def prepare(self, problem: Problem) -> Candidate:
        """The candidate for a problem."""
        module, _, function = self.place.partition(":")
        found: Candidate = getattr(importlib.import_module(f"kgen.bench.peers.{module}"), function)(problem)
        return found


PEERS = (
    Peer("cuDNN", "cudnn", "sdpa:cudnn"),
    Peer("FA2", "fa2", "sdpa:flash"),
    Peer("FA3", "fa3", "flash_attention:fa3"),
    Peer("FA4", "fa4", "flash_attention:fa4"),
    Peer("FlashMLA", "flashmla", "flash_mla:flash_mla"),
    Peer("FlashInfer", "flashinfer", "flashinfer:flashinfer", is_default=False),
    Peer("FlexAttention", "flex", "flex:flex", is_spare=True),
    Peer("head a program", "plain", "plain:head_a_program", is_baseline=True),
    Peer("plain MLA", "plain_mla", "plain:latent", is_baseline=True),
)


def chosen(names: str) -> tuple[Peer, ...]:
    """Peers by their keys, comma separated; ``default`` and ``all`` stand for several.

    A spare one that is named, or one of all, is timed everywhere.

    Raises ``InputError`` that lists every name that is no peer's.
    """
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in {"default", "all", *(peer.key for peer in PEERS)}]
    if unknown or not wanted:
        keys = ", ".join(peer.key for peer in PEERS)
        raise InputError(
            f"--peers {names}: {', '.join(unknown) or 'nothing'} is no peer; there are default, all, {keys}"
        )
    named = {peer.key for peer in PEERS if peer.key in wanted or "all" in wanted}
    return tuple(
        replace(peer, is_spare=peer.is_spare and peer.key not in named)
        for peer in PEERS
        if peer.key in named or ("default" in wanted and peer.is_default)
    )
