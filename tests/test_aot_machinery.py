"""Ahead-of-time compilation itself, on a toy module: what it sees, what it shares, how it tells of failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from kgen.aot import (
    DEVICES,
    CompiledKernel,
    CompileError,
    Failure,
    Report,
    compile_module,
    compile_modules,
    record_launches,
)
from kgen.aot.calls import Sizes
from kgen.aot.machine_code import (
    amdgcn_census,
    amdgcn_metadata,
    ptxas_resources,
    ptxas_warnings,
    sass_census,
    sass_order,
)
from kgen.errors import InputError
from tests.aot_support import assert_vectorised

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.triton

TOY = '''
"""A module of the generated shape: one tile of scores times values."""
import torch
import triton
import triton.language as tl

SPEC = {
    "name": "toy",
    "attention": {
        "kind": "grouped",
        "num_qo_heads": 4,
        "num_kv_heads": 2,
        "head_dim_qk": 64,
        "head_dim_v": 64,
        "mask": {"kind": "full"},
    },
    "dtype": "float16",
    "kernels": {"prefill": {"kind": "prefill", "layout": "bhsd", "padded": False, "kv": {"kind": "contiguous"}}},
}
_SCALE = tl.constexpr(0.125)


@triton.jit
def _step(q, k_ptrs, v_ptrs, acc):
    """One tile of keys."""
    k = tl.load(k_ptrs)
    p = tl.exp2(tl.dot(q, k.T) * _SCALE)
    v = tl.load(v_ptrs)
    return acc + tl.dot(p.to(v.dtype), v)


@triton.jit(do_not_specialize=["N"])
def _toy_kernel(
    q, k, v, out, stride_qm, stride_kn, stride_vn, stride_om, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, 64)
    q_tile = tl.load(q + offs_m[:, None] * stride_qm + offs_d[None, :])
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    k_ptrs = k + offs_n[:, None] * stride_kn + offs_d[None, :]
    v_ptrs = v + offs_n[:, None] * stride_vn + offs_d[None, :]
    for start in range(0, N, BLOCK_N):
        acc = _step(q_tile, k_ptrs + start * stride_kn, v_ptrs + start * stride_vn, acc)
    tl.store(out + offs_m[:, None] * stride_om + offs_d[None, :], acc.to(tl.float16))


def attention(q, k, v, *, out=None, return_lse=False):
    properties = torch.cuda.get_device_properties(q.device)
    assert properties.multi_processor_count > 80
    if torch.version.hip:
        assert properties.gcnArchName.startswith("gfx942")
    out = torch.empty_like(q)
    with torch.cuda.device_of(q):
        _toy_kernel[(1,)](
            q, k, v, out, q.stride(2), k.stride(2), v.stride(2), out.stride(2), k.shape[2],
            BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2,
        )
    return out
'''


LOST_SPECIALISATION = TOY.replace('do_not_specialize=["N"]', 'do_not_specialize=["N", "stride_kn", "stride_vn"]')
SPILLING = TOY.replace("BLOCK_M=64, BLOCK_N=64, num_warps=4", "BLOCK_M=128, BLOCK_N=128, num_warps=1")
REWORDED = "\n\n# moved down\n" + TOY.replace(
    '"""One tile of keys."""', '"""Other words,\n    longer."""\n    # a comment'
)
BROKEN = TOY.replace("tl.arange(0, 64)", "tl.arange(0, 48)")
ORPHAN = TOY + "\n\n@triton.jit\ndef _orphan(x):\n    tl.store(x, 0.0)\n"
ASKS_THE_DEVICE = TOY.replace("out = torch.empty_like(q)", "out = torch.empty_like(q) * int(q.max())")
VARIANTS = {
    "toy": (TOY, tuple(DEVICES)),
    "reworded": (REWORDED, ("sm_80",)),
    "lost_specialisation": (LOST_SPECIALISATION, ("sm_80",)),
    "spilling": (SPILLING, ("sm_80", "gfx942")),
    "broken": (BROKEN, ("sm_80",)),
    "orphan": (ORPHAN, ("sm_80",)),
    "asks_the_device": (ASKS_THE_DEVICE, ("sm_80",)),
}


def write(folder: Path, source: str = TOY) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "prefill.py"
    path.write_text(source, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Compiled:
    """All variants of the toy, compiled in one go."""

    folder: Path
    report: Report

    def kernels(self, variant: str, target: str = "sm_80") -> list[CompiledKernel]:
        """The launches of aligned and of unaligned rows, in this order."""
        return [
            kernel
            for kernel in self.report.kernels
            if kernel.target == target and kernel.launch.module == str(self.folder / variant / "prefill.py")
        ]

    def failures(self, variant: str) -> list[Failure]:
        return [
            failure for failure in self.report.failures if failure.module == str(self.folder / variant / "prefill.py")
        ]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("variants")
    requests = [(write(folder / name, source), target) for name, (source, ts) in VARIANTS.items() for target in ts]
    with pytest.MonkeyPatch.context() as patch:
        # The interpreter's switch in the caller's environment must not reach the compiler.
        patch.setenv("TRITON_INTERPRET", "1")
        return Compiled(folder, compile_modules(requests, cache_dir=folder / "cache"))


@pytest.mark.parametrize("target", DEVICES)
def test_a_module_compiles_for_every_target_without_a_gpu(compiled: Compiled, target: str) -> None:
    kernels = compiled.kernels("toy", target)
    assert [kernel.launch.calls for kernel in kernels] == [
        ("prefill", "prefill with lse"),
        ("prefill of unaligned rows",),
    ]
    for kernel in kernels:
        resources = kernel.resources
        assert kernel.kernel == "_toy_kernel"
        assert dict(kernel.launch.constants) == {"BLOCK_M": 64, "BLOCK_N": 64}
        assert kernel.threads == 4 * DEVICES[target].warp_size
        assert 32 <= resources.registers <= 512
        assert resources.spill_bytes == resources.stack_bytes == 0
        assert resources.shared_bytes >= 64 * 64 * 2
        matrix_product = {"sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "v_mfma"}.get(target, "HMMA")
        assert resources.count(matrix_product) > 0
        assert resources.count("MUFU.EX2", "v_exp_f32") > 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_aligned_rows_are_loaded_16_bytes_at_a_time_and_others_are_not(compiled: Compiled, target: str) -> None:
    aligned, unaligned = compiled.kernels("toy", target)
    assert_vectorised(aligned)
    with pytest.raises(AssertionError, match=r"loads of 1 or 2 bytes|no 16-byte load"):
        assert_vectorised(unaligned)


def test_a_lost_stride_specialisation_shows_as_narrow_loads(compiled: Compiled) -> None:
    kernels = compiled.kernels("lost_specialisation")
    with pytest.raises(AssertionError, match=r"loads of 1 or 2 bytes|asynchronous"):
        assert_vectorised(kernels[0])


def test_spills_are_seen_also_when_the_cache_has_the_kernel(compiled: Compiled) -> None:
    path = compiled.folder / "spilling" / "prefill.py"
    again = compile_modules([(path, "sm_80"), (path, "gfx942")], cache_dir=compiled.folder / "cache")
    assert len(again.kernels) == 4
    for target, local_memory in (("sm_80", ("STL", "LDL")), ("gfx942", ("scratch_", "buffer_"))):
        first = compiled.kernels("spilling", target)[0].resources
        assert first.spill_bytes > 0
        assert first.stack_bytes > 0
        assert first.count(*local_memory) > 0
        assert next(kernel for kernel in again.kernels if kernel.target == target).resources == first


def test_one_body_compiles_once_wherever_it_stands(compiled: Compiled) -> None:
    original, reworded = compiled.kernels("toy"), compiled.kernels("reworded")
    assert [kernel.launch.key for kernel in original] == [kernel.launch.key for kernel in reworded]
    assert [kernel.resources for kernel in original] == [kernel.resources for kernel in reworded]
    keys = {kernel.launch.key for kernel in compiled.report.kernels}
    assert compiled.report.compiles == len(keys) + len(compiled.failures("broken"))


def test_what_changes_the_code_changes_the_key(tmp_path: Path) -> None:
    changes = [
        ("tl.constexpr(0.125)", "tl.constexpr(0.25)"),
        ("return acc + tl.dot", "return acc - tl.dot"),
        ("num_warps=4", "num_warps=8"),
        ("BLOCK_N=64", "BLOCK_N=32"),
        ('"dtype": "float16"', '"dtype": "bfloat16"'),
        ('do_not_specialize=["N"]', 'do_not_specialize=["N", "stride_kn"]'),
    ]
    assert all(before in TOY for before, _ in changes)
    sources = [TOY, *(TOY.replace(*change) for change in changes)]
    paths = [write(tmp_path / str(number), source) for number, source in enumerate(sources)]
    recorded = record_launches([*((path, "sm_80") for path in paths), (paths[0], "sm_90")])
    keys = [launches[0].key for launches in recorded]
    assert len(set(keys)) == len(keys)


def test_lengths_do_not_recompile_unless_the_kernel_specialises_on_them(tmp_path: Path) -> None:
    specialised = TOY.replace('@triton.jit(do_not_specialize=["N"])', "@triton.jit")
    requests = [(write(tmp_path / "one"), "sm_90"), (write(tmp_path / "two", specialised), "sm_90")]
    one, two = record_launches(requests, sizes=[Sizes(1, 1, 1), Sizes(2, 16, 16), Sizes(3, 17, 4099)])
    assert len(one) == 2
    assert len(two) > 2


def test_a_kernel_that_does_not_compile_is_named(compiled: Compiled) -> None:
    assert compiled.kernels("broken") == []
    failures = compiled.failures("broken")
    assert {failure.kernel for failure in failures} == {"_toy_kernel"}
    assert "power of 2" in failures[0].text()
    assert "launched by: prefill, prefill with lse" in failures[0].text()


def test_a_kernel_that_no_call_launches_is_reported(compiled: Compiled) -> None:
    (failure,) = compiled.failures("orphan")
    assert "no representative call launches _orphan" in failure.message


def test_a_launch_that_asks_the_device_for_values_is_reported(compiled: Compiled) -> None:
    (failure,) = compiled.failures("asks_the_device")
    assert failure.message.startswith("recording its launches failed")


def test_one_module_is_compiled_or_raises(compiled: Compiled) -> None:
    cache_dir = compiled.folder / "cache"
    kernels = compile_module(compiled.folder / "toy" / "prefill.py", "sm_80", cache_dir=cache_dir)
    assert [kernel.resources for kernel in kernels] == [kernel.resources for kernel in compiled.kernels("toy")]
    with pytest.raises(CompileError, match="no representative call launches _orphan"):
        compile_module(str(compiled.folder / "orphan" / "prefill.py"), "sm_80", cache_dir=cache_dir)


def test_wrong_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sm_75 is not a target; choose from sm_80"):
        compile_module(write(tmp_path), "sm_75")
    with pytest.raises(InputError, match=r"nowhere\.py is not there; run kgen build first"):
        compile_module(tmp_path / "nowhere.py", "sm_80")


def test_sass_census_keeps_the_width_of_memory_instructions() -> None:
    disassembly = """
        /*0010*/                   LDG.E.U16.CONSTANT R2, desc[UR4][R2.64] ;
        /*0020*/               @P0 LDGSTS.E.BYPASS.LTC128B.128 [R5], [R6.64] ;
        /*0030*/              @!P1 LDG.E R3, [R4.64] ;
        /*0040*/                   MUFU.EX2 R7, R8 ;
        /*0050*/         @!UPT UIADD3 UR4, UR4, URZ, URZ ;
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0070*/                   STL.64 [R1+0x8], R2 ;
    """
    assert dict(sass_census(disassembly)) == {
        "LDG.16": 1,
        "LDGSTS.128": 1,
        "LDG.32": 1,
        "MUFU.EX2": 1,
        "UIADD3": 1,
        "HGMMA": 1,
        "STL.64": 1,
    }


def test_sass_order_keeps_products_waits_exponentials_and_own_barriers() -> None:
    disassembly = """
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x1, 0x80 ;
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x8, 0x100 ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], !UPT ;
        /*0040*/                   UIADD3 UR4, UR4, 0x2, URZ ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0060*/                   BAR.ARV 0xa, 0x100 ;
        /*0070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0080*/               @P0 MUFU.EX2 R7, R8 ;
    """
    assert sass_order(disassembly) == (
        ("BAR.SYNC 8", 1),
        ("HGMMA", 2),
        ("BAR.ARV 10", 1),
        ("WARPGROUP.DEPBAR", 1),
        ("MUFU.EX2", 1),
    )


def test_amdgcn_is_read_with_its_metadata() -> None:
    assembly = (
        "_kernel:\n\tv_exp_f32_e32 v0, v1\n\tbuffer_load_dwordx4 v[0:3], v1, s[0:3], 0 offen\n\ts_barrier\n"
        "\t.amdgpu_metadata\n  - .agpr_count:     86\n    .vgpr_count:     342\n    .vgpr_spill_count: 2\n"
    )
    assert dict(amdgcn_census(assembly)) == {"v_exp_f32": 1, "buffer_load_dwordx4": 1, "s_barrier": 1}
    assert amdgcn_metadata(assembly, "vgpr_count") == 342
    assert amdgcn_metadata(assembly, "agpr_count") == 86
    with pytest.raises(ValueError, match=r"no \.group_segment_fixed_size"):
        amdgcn_metadata(assembly, "group_segment_fixed_size")


def test_the_log_of_ptxas_is_read() -> None:
    log = (
        "ptxas info    : Compiling entry function '_k' for 'sm_90a'\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
        "ptxas info    : Function properties for _k\n"
        "    216 bytes stack frame, 356 bytes spill stores, 304 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers\n"
    )
    assert ptxas_resources(log) == (255, 660, 216)
    assert ptxas_warnings(log) == (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
    )
    with pytest.raises(ValueError, match="not a log of ptxas"):
        ptxas_resources("Segmentation fault")
