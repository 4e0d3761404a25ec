"""Helpers of the ahead-of-time tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgen.aot import CompiledKernel

# Aligned rows are copied 16 bytes at a time: by the asynchronous copies of sm_80, by TMA, by gfx942's wide loads.
WIDE_LOADS = ("LDGSTS.128", "UTMALDG", "LDG.128", "buffer_load_dwordx4", "global_load_dwordx4")
NARROW_LOADS = (
    *("LDG.8", "LDG.16", "global_load_ubyte", "global_load_ushort", "global_load_short"),
    *("buffer_load_ubyte", "buffer_load_ushort", "buffer_load_short"),
)
MATRIX_PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA", "FFMA", "v_mfma", "v_fma", "v_pk_fma")


def assert_vectorised(kernel: CompiledKernel) -> None:
    """K and V come 16 bytes a thread (asynchronously where sm_80 and sm_90 pipeline), nothing comes 1 or 2 bytes."""
    resources = kernel.resources
    where = f"{kernel.launch.module}: {kernel.kernel} for {kernel.target}"
    wide = resources.count(*WIDE_LOADS)
    assert wide, f"{where} has no 16-byte load: {dict(resources.instructions)}"
    narrow = resources.count(*NARROW_LOADS)
    assert not narrow, f"{where} has {narrow} loads of 1 or 2 bytes beside {wide} of 16"
    if kernel.target in ("sm_80", "sm_90") and kernel.launch.num_stages > 1:
        assert resources.count("LDGSTS.128", "UTMALDG"), f"{where} has no asynchronous copy of 16 bytes"
