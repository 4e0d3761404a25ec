"""Every committed kernel on a GPU: all cases, full shapes, poison, repeats, graphs, strides past 2**31."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgen.spec import views
from kgen.verify.cases import device_cases
from kgen.verify.modules import check_fresh, load_package, tiles
from kgen.verify.run import cases
from kgen.workspace import find, load
from tests.gpu.support import assert_passed, the_gpu

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SPECS = {loaded.spec.name: loaded for loaded in load(find([ROOT / "specs"]))}
KERNELS = [(name, kernel) for name, loaded in SPECS.items() for kernel in loaded.spec.kernels]


@pytest.fixture(scope="module", autouse=True)
def gpu() -> torch.device:
    return the_gpu()


@pytest.fixture(scope="module")
def modules():
    check_fresh(list(SPECS.values()), ROOT / "generated")
    return {name: load_package(ROOT / "generated" / name) for name in SPECS}


@pytest.mark.parametrize(("name", "kernel"), KERNELS, ids=["/".join(pair) for pair in KERNELS])
def test_kernel_passes_every_case(name, kernel, modules, gpu):
    assert_passed(SPECS[name].spec, kernel, modules[name][kernel], gpu)


def test_one_compile_serves_every_length(modules, gpu):
    """Lengths and batches are runtime values: nothing is compiled again for a new one."""
    name = "llama3_8b"
    a = SPECS[name].spec.attention
    for kernel, module in modules[name].items():

        def compiled(module=module):
            forms = [module, *filter(None, [getattr(module, "_sm90", None)])]
            functions = [f for form in forms for f in vars(form).values() if hasattr(f, "device_caches")]
            return sum(len(cache[0]) for f in functions for cache in f.device_caches.values())

        def call(batch, n, kernel=kernel, module=module):
            k = torch.randn(batch, a.num_kv_heads, n, a.head_dim_qk, device=gpu, dtype=torch.bfloat16)
            if kernel == "prefill":
                q = torch.randn(batch, a.num_qo_heads, n, a.head_dim_qk, device=gpu, dtype=torch.bfloat16)
                return module.attention(q, k, k)
            q = torch.randn(batch, a.num_qo_heads, a.head_dim_qk, device=gpu, dtype=torch.bfloat16)
            return module.attention(q, k, k, seq_lens=torch.full((batch,), n, dtype=torch.int32, device=gpu))

        call(3, 77)
        before = compiled()
        assert before > 0
        for batch, n in ((1, 1), (1, 16), (2, 64), (16, 100), (1, 1024), (5, 1023)):
            call(batch, n)
        assert compiled() == before


def test_the_full_shapes_are_among_the_cases(modules, gpu):
    for name, kernel in KERNELS:
        if SPECS[name].spec.kernels[kernel].kind == "merge_states":
            made = cases(SPECS[name].spec, kernel, modules[name][kernel], gpu)
            assert max(case.parts for case in made) >= 257
            continue
        made = device_cases(views.seen_by(SPECS[name].spec, kernel), kernel, tiles(modules[name][kernel])[0])
        assert max(case.kv_len for case in made) >= 8000
        assert max(case.batch for case in made) >= (64 if kernel == "decode" else 3)
