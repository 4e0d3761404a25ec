"""Spec -> plans: which template, which tiles, which schedule, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgen.diagnostics import Problem
from kgen.errors import SpecError
from kgen.plan.blocks import blocks_of, lanes, next_power_of_2
from kgen.plan.hopper import hopper_plan
from kgen.plan.merge import merge_plan
from kgen.plan.model import Block, DecodePlan, HopperPlan, KernelPlan, PrefillPlan, Tile, Window
from kgen.plan.targets import TARGET_INFO
from kgen.plan.tiles import Widths, candidates, unaligned
from kgen.spec import views
from kgen.spec.cache import PagedCache
from kgen.spec.mask import CausalMask, FullMask, SlidingWindowMask, WindowMask
from kgen.spec.model import DecodeKernel, GroupedAttention, LatentAttention, MergeStatesKernel, PrefillKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.plan.model import ModulePlan
    from kgen.spec.loader import LoadedSpec
    from kgen.spec.model import Attention, Kernel

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
SECTION_BYTES = 32 << 20  # keys and values of the heads in flight; L2 is 40 MB on A100, 50 to 60 MB on Hopper
PROGRAMS_PER_SM = 2
MAX_DECODE_ROWS = 128
BATCH_CHUNK = 32  # lengths read at a time, one a lane: each warp counts for itself, and none waits for another
# Where the lengths of a prefill's requests stand, and what follows for the launch.
LENGTHS = {
    "shapes": "every request has all M queries and N keys",
    "seq_lens": "the grid covers the padded batch; programs of padding alone read no keys and write 0",
    "indptr": "the grid covers max_qo_len rows of every request; programs past a request's rows end at once",
    "chunks": "the grid covers max_qo_len rows of every request, the last of its seq_lens tokens; programs past its "
    "rows end at once",
}
# Beside the page size, for `kgen explain`.
_PAGES_IN_WORDS = {
    "paged": "a page index for each key, loaded one tile ahead",
    "paged_tile": "a page holds a whole number of tiles of every target: one page index a tile, loaded one tile ahead",
}
MERGE_ELEMENTS = 4096  # float32 values of parts that one warp merges at a time: 128 registers a thread


def lower(loaded: LoadedSpec) -> tuple[ModulePlan, ...]:
    """The plans of a spec's kernels, by name.

    Raises:
        SpecError: KG401 where a target cannot hold any tile of a kernel, with the numbers.
    """
    plans: list[ModulePlan] = []
    problems: list[Problem] = []
    for name, kernel in sorted(loaded.spec.kernels.items()):
        if isinstance(kernel, MergeStatesKernel):
            plans.append(merge_plan(loaded, spec_path(loaded), name, kernel, DTYPE_BYTES[loaded.spec.dtype]))
            continue
        plan = _lower_kernel(loaded, name, kernel, problems)
        if plan is not None:
            plans.append(plan)
    if problems:
        raise SpecError(loaded.diagnose(problems))
    return tuple(plans)


def spec_path(loaded: LoadedSpec) -> str:
    """The path that headers state: relative to the folder that holds the specs folder."""
    if loaded.path is None:
        return loaded.display
    path = loaded.path.resolve()
    return f"{path.parent.name}/{path.name}"


def _window(mask: object) -> Window:
    match mask:
        case FullMask():
            return Window(None, None)
        case CausalMask():
            return Window(None, 0)
        case SlidingWindowMask(size=size):
            return Window(size - 1, 0)
        case WindowMask(left=left, right=right):
            return Window(None if left < 0 else left, None if right < 0 else right)
    raise TypeError(f"no kernel masks by {type(mask).__name__}")  # features.py refuses it first


def _lower_kernel(loaded: LoadedSpec, name: str, kernel: Kernel, problems: list[Problem]) -> KernelPlan | None:
    spec = loaded.spec
    layer, values_are_keys = views.of_kernel(spec, name), views.is_absorbed(spec, name)
    assert isinstance(kernel, PrefillKernel | DecodeKernel)
    dtype_bytes = DTYPE_BYTES[spec.dtype]
    qk_blocks, v_blocks = blocks_of(layer.head_dim_qk), blocks_of(layer.head_dim_v)
    pe_blocks = () if layer.head_dim_pe is None else blocks_of(layer.head_dim_pe)
    is_decode = isinstance(kernel, DecodeKernel)
    template = "decode" if is_decode else "prefill"
    rows = min(MAX_DECODE_ROWS, max(16, next_power_of_2(layer.group_size))) if is_decode else 1 << 30
    table = "absorbed" if values_are_keys else template
    widths = Widths(lanes(qk_blocks) + lanes(pe_blocks), lanes(v_blocks), dtype_bytes, values_are_keys)

    window = _window(layer.mask)

    launch: list[tuple[str, Tile]] = []
    for target in spec.targets:
        tiles = candidates(
            target,
            table,
            widths,
            rows=rows,
            is_windowed=window.left is not None,
            has_many_addresses=layer.head_dim_pe is not None or isinstance(kernel.kv, PagedCache),
        )
        limit = TARGET_INFO[target].shared_bytes
        fitting = [tile for tile in tiles if tile.shared_bytes <= limit]
        if fitting:
            # The balanced schedule counts on so many programs side by side.
            resident = _programs_per_sm(rows, values_are_keys) if is_decode else 1
            roomy = [tile for tile in fitting if resident * tile.shared_bytes <= limit]
            launch.append((target, (roomy or fitting)[0]))
            continue
        least = min(tile.shared_bytes for tile in tiles)
        problems.append(_does_not_fit(name, target, least))
    if len(launch) < len(spec.targets):
        return None
    if is_decode and layer.num_kv_heads > 1:
        launch = _same_rows(launch)

    least_rows = min(tile.block_m for _, tile in launch)
    unaligned_tile = _unaligned(table, spec.targets, widths, least_rows, name, problems)
    if unaligned_tile is None:
        return None
    largest_tile = max(unaligned_tile.block_n, *(tile.block_n for _, tile in launch))
    prefill = decode = hopper = None
    head_tiles = -(-layer.group_size // min(least_rows, unaligned_tile.block_m)) if is_decode else 1
    if isinstance(kernel, DecodeKernel):
        decode = _decode_plan(
            kernel, layer, window, launch, unaligned_tile, rows, head_tiles, values_are_keys=values_are_keys
        )
    elif isinstance(kernel, PrefillKernel):
        prefill = _prefill_plan(spec.attention, kernel, window, largest_tile)
        hopper = hopper_plan(spec, kernel, layer)
    return KernelPlan(
        spec_name=spec.name,
        spec_path=spec_path(loaded),
        spec_digest=loaded.digest,
        spec=spec.model_dump(mode="json"),
        kernel=name,
        template=template,
        dtype=spec.dtype,
        allow_tf32=spec.allow_tf32,
        num_qo_heads=layer.num_qo_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim_qk=layer.head_dim_qk,
        head_dim_pe=layer.head_dim_pe,
        head_dim_v=layer.head_dim_v,
        values_are_keys=values_are_keys,
        qk_blocks=qk_blocks,
        pe_blocks=pe_blocks,
        v_blocks=v_blocks,
        sm_scale=layer.sm_scale,
        mask=layer.mask.kind,
        window=window,
        stride_unit=16 // dtype_bytes,
        section_bytes=SECTION_BYTES,
        kv_bytes_per_token=_record(layer, values_are_keys) * dtype_bytes,
        prefill=prefill,
        decode=decode,
        hopper=hopper,
        launch=tuple(launch),
        unaligned=unaligned_tile,
        reasons=tuple(
            _reasons(
                layer,
                (qk_blocks, pe_blocks, v_blocks),
                launch,
                unaligned_tile,
                prefill,
                decode,
                hopper,
                values_are_keys=values_are_keys,
            )
        ),
    )


def _does_not_fit(kernel: str, target: str, least: int, rows: str = "") -> Problem:
    """KG401: the smallest tile is too large for a target."""
    return Problem(
        "KG401",
        ("kernels", kernel),
        f"{kernel} does not fit {target}: the smallest tile{rows} takes {least:,} bytes of shared memory, "
        f"{target} has {TARGET_INFO[target].shared_bytes:,}",
        f"leave {target} out of targets",
    )


def _unaligned(
    table: str, targets: Sequence[str], widths: Widths, rows: int, kernel: str, problems: list[Problem]
) -> Tile | None:
    """The first tile for rows off 16 bytes that every target holds, with the largest estimate of any."""
    of_targets = [unaligned(table, target, widths, rows=rows) for target in targets]
    limits = [TARGET_INFO[target].shared_bytes for target in targets]
    for tiles in zip(*of_targets, strict=True):
        if all(tile.shared_bytes <= limit for tile, limit in zip(tiles, limits, strict=True)):
            largest: Tile = max(tiles, key=lambda tile: tile.shared_bytes)
            return largest
    for target, tiles in zip(targets, of_targets, strict=True):
        least = min(tile.shared_bytes for tile in tiles)
        if least > TARGET_INFO[target].shared_bytes:
            problems.append(_does_not_fit(kernel, target, least, " for rows that do not start on 16 bytes"))
    return None


def _programs_per_sm(rows: int, values_are_keys: bool) -> int:
    """Programs of the balanced schedule on a multiprocessor: one where the latents of many heads fill it."""
    return 1 if values_are_keys and rows > 32 else PROGRAMS_PER_SM


def _record(layer: GroupedAttention, values_are_keys: bool) -> int:
    """Elements of a token that one KV head reads."""
    return layer.head_dim_qk + (layer.head_dim_pe or 0) + (0 if values_are_keys else layer.head_dim_v)


def _lengths(kernel: PrefillKernel) -> str:
    if isinstance(kernel.kv, PagedCache):
        return "chunks"
    return "indptr" if kernel.layout == "ragged" else "seq_lens" if kernel.padded else "shapes"


def _prefill_plan(layer: Attention, kernel: PrefillKernel, window: Window, largest_tile: int) -> PrefillPlan:
    return PrefillPlan(
        layout=kernel.layout,
        lengths=_lengths(kernel),
        address=_address(kernel, window, largest_tile),
        page_size=kernel.kv.page_size if isinstance(kernel.kv, PagedCache) else None,
        nope_rope=(layer.qk_nope_head_dim, layer.qk_rope_head_dim) if isinstance(layer, LatentAttention) else None,
    )


def _address(kernel: PrefillKernel | DecodeKernel, window: Window, largest_tile: int) -> str:
    """How a tile finds its rows: the choice holds for every tile of the launch table."""
    if not isinstance(kernel.kv, PagedCache):
        return "contiguous"
    # Tiles of a window begin at its left edge, wherever that lies in a page.
    is_tile_in_page = kernel.kv.page_size % largest_tile == 0 and window.left is None
    return "paged_tile" if is_tile_in_page else "paged"


def _decode_plan(
    kernel: DecodeKernel,
    layer: GroupedAttention,
    window: Window,
    launch: list[tuple[str, Tile]],
    unaligned_tile: Tile,
    rows: int,
    head_tiles: int,
    *,
    values_are_keys: bool,
) -> DecodePlan:
    page_size = kernel.kv.page_size if isinstance(kernel.kv, PagedCache) else None
    tile_lengths = (unaligned_tile.block_n, *(tile.block_n for _, tile in launch))
    address = _address(kernel, window, max(tile_lengths))
    is_whole = page_size is not None and window.left is None and all(n % page_size == 0 for n in tile_lengths)
    return DecodePlan(
        address=address,
        page_size=page_size,
        has_fixed_slots=address == "paged" and is_whole and page_size != 1,
        num_splits=None if kernel.num_splits == "auto" else kernel.num_splits,
        head_tiles=head_tiles,
        tiles="masked" if values_are_keys else "apart",
        walk="tasks" if values_are_keys else "units",
        programs_per_sm=_programs_per_sm(rows, values_are_keys),
        batch_chunk=BATCH_CHUNK,
        merge_chunk=min(32, MERGE_ELEMENTS // next_power_of_2(layer.head_dim_v)),
        merge_warps=1,
        pdl_targets=tuple(target for target, _ in launch if TARGET_INFO[target].has_pdl),
    )


def _same_rows(launch: list[tuple[str, Tile]]) -> list[tuple[str, Tile]]:
    """One BLOCK_H for all targets: how a group is cut into tiles is part of the source."""
    rows = min(tile.block_m for _, tile in launch)
    return [(target, replace(tile, block_m=rows)) for target, tile in launch]


def _blocks_in_words(head_dim: int, blocks: tuple[Block, ...]) -> str:
    widths = " + ".join(str(block.width) for block in blocks)
    idle = lanes(blocks) - head_dim
    return f"{widths} lanes" + (f", {idle} of them idle" if idle else "")


def _reasons(
    layer: GroupedAttention,
    blocks: tuple[tuple[Block, ...], ...],
    launch: list[tuple[str, Tile]],
    unaligned_tile: Tile,
    prefill: PrefillPlan | None,
    decode: DecodePlan | None,
    hopper: HopperPlan | None,
    *,
    values_are_keys: bool,
) -> list[tuple[str, str]]:
    absorbed = ("kv_lora_rank", "qk_rope_head_dim", "kv_lora_rank, as value")
    names = absorbed if values_are_keys else ("head_dim_qk", "head_dim_pe", "head_dim_v")
    dims = (layer.head_dim_qk, layer.head_dim_pe, layer.head_dim_v)
    reasons = [
        (f"{name} {dim}", _blocks_in_words(dim, of_dim))
        for name, dim, of_dim in zip(names, dims, blocks, strict=True)
        if dim is not None
    ]
    reasons += [
        (
            "tiles",
            "the first of the tuned table that the target holds; measured on an H200 (sm_90), elsewhere chosen by "
            "compiled registers and shared memory",
        ),
        (
            f"unaligned tile {unaligned_tile.block_m} x {unaligned_tile.block_n}",
            "on every target, for tensors whose rows do not start on 16 bytes: loads of single elements, few registers",
        ),
        (f"mask {layer.mask.kind}", "tiles outside the mask are skipped, full tiles carry no mask"),
    ]
    cache = prefill or decode
    if cache is not None and cache.page_size is not None:
        reasons.append((f"page_size {cache.page_size}", _PAGES_IN_WORDS[cache.address]))
    if decode is not None:
        for block_h in sorted({tile.block_m for _, tile in launch}):
            head_tiles = -(-layer.group_size // block_h)
            loads = "once" if head_tiles == 1 else f"{head_tiles} times"
            what = "tile of latents" if values_are_keys else "K/V tile"
            reasons.append(
                (
                    f"BLOCK_H {block_h}",
                    f"a group of {layer.group_size} query heads in {head_tiles} tile{'s' if head_tiles > 1 else ''}; "
                    f"each {what} is loaded {loads} a group",
                )
            )
        if values_are_keys:
            reasons.append(
                ("form absorbed", "the latent of a token is key and value of all heads, loaded once for both")
            )
        reasons.append(
            ("num_splits auto", "the tiles of the batch are dealt out equally, from seq_lens on the device")
            if decode.num_splits is None
            else (f"num_splits {decode.num_splits}", "every request in that many equal ranges, whatever its batch")
        )
    if hopper is not None:
        reasons.append(
            (
                "form for sm_90",
                f"where TMA can address the tensors: one warp loads, {hopper.groups} warpgroups compute {hopper.rows} "
                f"rows in tiles of {hopper.keys} keys; {hopper.shared_bytes:,} bytes of shared memory",
            )
        )
    if prefill is not None:
        reasons += [
            (f"lengths from {prefill.lengths}", LENGTHS[prefill.lengths]),
            (
                "program order",
                f"heads of a group adjacent, sections of {SECTION_BYTES >> 20} MiB of keys and values in L2",
            ),
        ]
    return reasons
