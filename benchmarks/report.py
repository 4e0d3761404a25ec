"""The speed table of the README, from the committed results.

python benchmarks/report.py benchmarks/results/h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PEERS = ("cuDNN", "FA2", "FA3", "FlexAttention")


def table(record: dict[str, Any]) -> str:
    """Markdown: a row a workload, our time and rate, the peers' times, and the best peer's time over ours."""
    ceilings = record["ceilings"]
    lines = [
        f"{record['device']}, {record['date']}, torch {record['torch']}, triton {record['triton']}, bfloat16. Medians "
        f"of CUDA graph replays, {record['flush']}, in microseconds; measured in the same run: a read of 2 GiB at "
        f"{ceilings['read_tb_s']:.2f} TB/s and an 8192³ matrix product at {ceilings['matmul_tflop_s']:.0f} TFLOP/s. "
        "*read* is a bare "
        "read of the same bytes. A dash is a peer that does not state the layer or did not load.",
        "",
        f"| workload | B, M, N | kgen | rate | read | {' | '.join(PEERS)} | best peer / kgen |",
        f"|---|---|---|---|---|{'---|' * len(PEERS)}---|",
    ]
    for row in record["workloads"]:
        times = {name: measured["us"] for name, measured in row["times"].items()}
        ours = times["kgen"]
        is_decode = row["kernel"] == "decode"
        rate = f"{row['bytes'] / ours / 1e6:.2f} TB/s" if is_decode else f"{row['flops'] / ours / 1e6:.0f} TFLOP/s"
        peers = [f"{times[name]:.1f}" if name in times else "—" for name in PEERS]
        best = min((times[name] for name in PEERS if name in times), default=None)
        name = row["name"] if " " in row["name"] else f"{row['name']}: {Path(row['spec']).stem} {row['kernel']}"
        read = f"{times['read']:.1f}" if "read" in times else "—"
        ratio = f"{best / ours:.2f}" if best else "—"
        cells = [name, f"{row['B']}, {row['M']}, {row['N']}", f"{ours:.1f}", rate, read, *peers, ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
