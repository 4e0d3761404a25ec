"""How much shared memory a program takes, estimated before anything is compiled.

The estimate is an upper bound that follows what Triton 3.6 to 3.9 allocate; the
ahead-of-time tests compare it with the compiled truth of every committed kernel.
Three ways in which Triton turns ``tl.dot`` into instructions matter:

- *warp* (``mma.sync``, and plain multiply-adds for IEEE float32): the pipeline
  holds ``num_stages - 1`` tiles of K and V; on their way to the layout of an
  operand Q and P pass through shared memory, and reductions across warps too.
- *warpgroup* (``wgmma`` on sm_90, ``tcgen05`` on sm_100, from 64 rows and 16-bit
  types on): operands are read from shared memory, so the pipeline holds
  ``num_stages`` tiles and Q stays beside them.
- *wave* (MFMA on gfx942): as *warp*, but Q passes through before the pipeline is
  filled, so the larger of the two counts; without a pipeline everything passes
  through the same bytes.
"""

from __future__ import annotations

_WARPGROUP_TARGETS = ("sm_90", "sm_100")
_WARPGROUP_ROWS = 64
# Barriers of the asynchronous pipeline and the address of tensor memory.
_WARPGROUP_EXTRA = 2048


def shared_bytes(
    target: str,
    block_m: int,
    block_n: int,
    lanes_qk: int,
    lanes_v: int,
    dtype_bytes: int,
    num_stages: int,
    num_warps: int,
    *,
    values_are_keys: bool = False,
) -> int:
    """Upper bound in bytes for a prefill or decode program: ``block_m`` query rows, tiles of ``block_n`` keys.

    ``values_are_keys`` is the absorbed form, whose values are the first ``lanes_v`` lanes of the keys.
    """
    k = block_n * lanes_qk * dtype_bytes
    tile_of_values = block_n * lanes_v * dtype_bytes
    v = 0 if values_are_keys else tile_of_values
    q = block_m * lanes_qk * dtype_bytes
    p = block_m * block_n * dtype_bytes
    # Without a pipeline K and V follow each other through the same bytes.
    pipeline = (num_stages - 1) * (k + v) if num_stages > 1 else max(k, v)
    reductions = 8 * block_m * num_warps
    if target.startswith("gfx"):
        return max(q, k, v, p, reductions if num_stages == 1 else pipeline + p + reductions)
    warp = pipeline + q + p + reductions
    if values_are_keys and num_stages == 1:
        # Operands of mma.sync: a latent is there as key and as value, in two layouts, and Q beside them.
        both = 2 * tile_of_values if dtype_bytes <= 2 else k
        warp = max(warp, both + q + p + reductions)
    if target in _WARPGROUP_TARGETS and block_m >= _WARPGROUP_ROWS and dtype_bytes <= 2:
        # The accumulator may pass through shared memory once more, as float32, on its way out.
        accumulator = 4 * block_m * lanes_v
        return max(warp, num_stages * (k + v) + q + _WARPGROUP_EXTRA, accumulator)
    return warp
