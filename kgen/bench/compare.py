"""Two records beside each other: what became faster and what slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.bench.record import KGEN
from kgen.errors import InputError

if TYPE_CHECKING:
    from kgen.bench.record import Record


@dataclass(frozen=True)
class Change:
    """A workload in both records, microseconds; peers are the fastest of each run."""

    id: str
    flush: str
    old_us: float
    new_us: float
    old_peer_us: float | None
    new_peer_us: float | None

    @property
    def ratio(self) -> float:
        """New over old: above 1 is slower."""
        return self.new_us / self.old_us

    @property
    def peer_ratio(self) -> float | None:
        """The same of the fastest peer: how much of the change is the machine's."""
        if self.old_peer_us is None or self.new_peer_us is None:
            return None
        return self.new_peer_us / self.old_peer_us

    def is_slower(self, tolerance: float) -> bool:
        """Slower than ``tolerance``, a part of the old time, allows."""
        return self.ratio > 1 + tolerance


def changes(old: Record, new: Record) -> tuple[Change, ...]:
    """Every workload that both records hold under the same flush, in the order of the new one.

    Raises ``InputError`` where they are of different GPUs, or nothing is in both.
    """
    if old.device_name != new.device_name:
        raise InputError(
            f"the old record is of an {old.device_name}, this one of an {new.device_name}: their times say nothing "
            "about each other"
        )
    found = []
    for flush in new.flushes:
        for row in new.rows:
            before = old.row(row.id)
            ours, theirs = row.timing(KGEN, flush), None if before is None else before.timing(KGEN, flush)
            if (
                before is None
                or ours is None
                or theirs is None
                or (before.layer, before.shape) != (row.layer, row.shape)
            ):
                continue
            peers = [record.best_peer(one, flush) for record, one in ((old, before), (new, row))]
            old_peer, new_peer = (None if peer is None else peer[1].us for peer in peers)
            found.append(Change(row.id, flush, theirs.us, ours.us, old_peer, new_peer))
    if not found:
        raise InputError("the two records have no workload in common that was measured under the same flush")
    return tuple(found)
