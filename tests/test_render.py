"""The renderer: templates and context agree, and the source is what a reader expects of generated code."""

import ast
from pathlib import Path

import pytest
from jinja2 import Environment, meta, nodes

from kgen.plan.lower import lower
from kgen.plan.model import KernelPlan, MergePlan
from kgen.render.context import CONTEXTS
from kgen.render.emit import render
from kgen.render.environment import environment
from kgen.resources import templates_dir
from kgen.spec.loader import load_text

MASKS = (
    "{kind: full}",
    "{kind: causal}",
    "{kind: sliding_window, size: 100}",
    "{kind: window, left: 30, right: 10}",
    "{kind: window, left: 30, right: -1}",
    "{kind: window, left: -1, right: 10}",
)


def plans(
    mask: str,
    *,
    heads: str = "num_qo_heads: 8, num_kv_heads: 2",
    dims: str = "head_dim_qk: 64",
    splits="auto",
    prefill="",
    kv="{kind: contiguous}",
    layout="bhd",
    decode="decode: {{kv: {kv}, num_splits: {splits}}}, ",
):
    text = (
        f"name: sample\nattention: {{kind: grouped, {heads}, {dims}, mask: {mask}}}\ndtype: float16\n"
        f"kernels: {{prefill: {{{prefill}}}, {decode.format(kv=kv, splits=splits)}"
        f"merge_states: {{layout: {layout}}}}}\n"
    )
    return lower(load_text(text, "specs/sample.yaml"))


def every_variant():
    for mask in MASKS:
        yield from plans(mask)
    yield from plans(MASKS[1], dims="head_dim_qk: 72, head_dim_v: 96", splits=3)
    chunks = (f"layout: ragged, kv: {{kind: paged, page_size: {n}}}" for n in (1, 16, 128))
    for prefill in ("layout: bshd", "padded: true", "layout: ragged", *chunks):
        yield from (p for mask in MASKS for p in plans(mask, prefill=prefill) if p.kernel == "prefill")
    chunks = (f"layout: ragged, kv: {{kind: paged, page_size: {n}}}" for n in (1, 16, 128))
    for prefill in ("", "layout: bshd, padded: true", "layout: ragged", *chunks):
        for shared in (8, 1):
            facts = f"num_qo_heads: 8, num_kv_heads: {shared}"
            made = plans(MASKS[1], heads=facts, dims="head_dim_qk: 128, head_dim_pe: 72", prefill=prefill, decode="")
            yield from (p for p in made if p.kernel == "prefill")
    for layout in ("bhsd", "bshd", "ragged"):
        for heads in (1, 71):
            shared = f"num_qo_heads: {heads}, num_kv_heads: 1"
            made = plans(MASKS[0], layout=layout, heads=shared, dims="head_dim_qk: 40")
            yield from (p for p in made if p.template == "merge_states")
    for page_size in (1, 16, 64):
        yield from plans(MASKS[1], kv=f"{{kind: paged, page_size: {page_size}}}")
    yield from plans(MASKS[2], heads="num_qo_heads: 4, num_kv_heads: 4", kv="{kind: paged, page_size: 64}")
    yield from plans(MASKS[2], heads="num_qo_heads: 71, num_kv_heads: 1", kv="{kind: paged, page_size: 1}", splits=2)
    yield from plans(MASKS[2], heads="num_qo_heads: 142, num_kv_heads: 1", dims="head_dim_qk: 192, head_dim_v: 128")


def name_of(plan):
    if isinstance(plan, MergePlan):
        return f"{plan.kernel}-{plan.layout}-{plan.head_dim_v}"
    return f"{plan.kernel}-{plan.mask}-{plan.head_dim_qk}{'-' + plan.decode.address if plan.decode else ''}"


def included(env: Environment, name: str, seen: dict[str, nodes.Template]) -> dict[str, nodes.Template]:
    """The template and everything it can include or import, parsed."""
    if name in seen:
        return seen
    seen[name] = env.parse((templates_dir() / name).read_text(encoding="utf-8"))
    for reference in meta.find_referenced_templates(seen[name]):
        if reference is not None:
            included(env, reference, seen)
            continue
        # A part picked by name: every part of that name is a candidate.
        for include in seen[name].find_all(nodes.Include):
            if isinstance(include.template, nodes.Concat):
                stem = include.template.nodes[0]
                assert isinstance(stem, nodes.Const)
                for path in sorted(templates_dir().glob(f"{stem.value}*.j2")):
                    included(env, path.relative_to(templates_dir()).as_posix(), seen)
    return seen


@pytest.mark.parametrize("template", sorted(CONTEXTS))
def test_context_keys_are_the_template_variables(template):
    env = environment()
    parsed = included(env, f"kernels/{template}.py.j2", {})
    used = set().union(*(meta.find_undeclared_variables(tree) for tree in parsed.values()))
    local = {
        target.name
        for tree in parsed.values()
        for node in tree.find_all(nodes.With)
        for target in node.targets
        if isinstance(target, nodes.Name)
    }
    plan = next(p for p in plans(MASKS[1]) if p.template == template)
    assert set(CONTEXTS[template](plan)) == used - local


def test_every_template_is_part_of_a_kernel():
    env = environment()
    reached: dict[str, nodes.Template] = {}
    for path in (*(templates_dir() / "kernels").glob("*.j2"), *(templates_dir() / "sm90").glob("*.j2")):
        included(env, path.relative_to(templates_dir()).as_posix(), reached)
    assert set(reached) == {p.relative_to(templates_dir()).as_posix() for p in templates_dir().rglob("*.j2")}


def test_every_part_opens_with_a_comment_that_says_what_it_does():
    for path in sorted(templates_dir().rglob("*.j2")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("{% from")]
        assert lines[0].startswith("{# "), path


@pytest.mark.parametrize(
    "plan",
    list(every_variant()),
    ids=name_of,
)
def test_generated_source_is_clean(plan):
    source = render(plan)
    tree = ast.parse(source)
    lines = source.splitlines()
    assert max(map(len, lines)) <= 120
    assert not any(line != line.rstrip() for line in lines)
    assert "\n\n\n\n" not in source
    assert source.endswith("\n")
    assert not source.endswith("\n\n")
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"torch", "triton", "triton.language"}
    hopper = isinstance(plan, KernelPlan) and plan.hopper is not None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [alias.name for node in imports for alias in node.names] == ["prefill_sm90"] * hopper
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        used = {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
        # `form` takes the arguments of a call, of which it needs no return_lse.
        assert not set(arguments) - used - ({"return_lse"} if function.name == "form" else set()), function.name
        # A paged cache adds its table and the table's stride to what the contiguous one takes, and packed chunks of it
        # where they begin; each tensor of a pair of parts has strides of its own. A rotary part is two tensors more.
        extra = 2 if "qo_indptr_ptr" in arguments else 1
        most = 24 + (extra if {"block_table_ptr", "y_lse_ptr"} & set(arguments) else 0)
        most += sum("pe_" in name for name in arguments) + ("USE_PDL" in arguments)
        assert len(arguments) <= most, function.name
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        assert not {name for name in stored - read if name != "_"}, function.name
    defined = {f.name for f in functions} - {"attention", "merge_states", "form"}
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert defined <= read


def test_the_module_carries_its_resolved_spec():
    for plan in plans(MASKS[2]):
        tree = ast.parse(render(plan))
        (value,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SPEC"
        )
        assert ast.literal_eval(value) == plan.spec


def test_an_undefined_name_is_an_error(tmp_path: Path):
    (tmp_path / "broken.j2").write_text("{{ nothing }}", encoding="utf-8")
    with pytest.raises(Exception, match="'nothing' is undefined"):
        environment(tmp_path).get_template("broken.j2").render()


def test_what_the_mask_does_not_need_is_not_there():
    by_mask = {mask: {p.kernel: render(p) for p in plans(mask)} for mask in MASKS}
    assert "q_pos" not in by_mask[MASKS[0]]["prefill"]
    assert "distance" not in by_mask[MASKS[1]]["prefill"]
    assert "_num_keys" not in by_mask[MASKS[1]]["decode"]
    assert "distance <= 99" in by_mask[MASKS[2]]["prefill"]
    assert "_num_keys" in by_mask[MASKS[2]]["decode"]
    assert "_balanced_kernel" not in render(plans(MASKS[1], splits=4)[0])
