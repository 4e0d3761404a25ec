"""The pure map from specs to text, and the paths by which headers and folders are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgen import workspace
from kgen.cache import RenderCache
from kgen.diagnostics import Problem
from kgen.errors import InputError, SpecError
from kgen.plan import lower
from kgen.project import project as project_of
from kgen.render.header import body_digest, body_of, parse_header
from kgen.spec.loader import LoadedSpec, load_text
from tests.conftest import SPEC

NO_CACHE = RenderCache(None)


def rendered(*paths: str, out: str | None = None) -> dict[str, str]:
    found = workspace.find([Path(path) for path in paths], None if out is None else Path(out))
    return workspace.rendered(found, NO_CACHE)


def test_the_files_of_a_spec() -> None:
    loaded = load_text(SPEC.format(name="one", heads=8), "specs/one.yaml")
    files = project_of([loaded])
    assert list(files) == ["one/__init__.py", "one/decode.py", "one/prefill.py", "one/prefill_sm90.py"]
    for path, text in files.items():
        header = parse_header(text)
        assert header is not None
        assert header.spec_path == "specs/one.yaml"
        assert header.kernel == path.removeprefix("one/").removesuffix(".py")
        assert header.spec_digest == loaded.digest
        assert header.body_digest == body_digest(body_of(text))
        assert text.endswith("\n")
        assert "\r" not in text
        compile(text, path, "exec")


def test_the_order_of_specs_does_not_matter() -> None:
    specs = [load_text(SPEC.format(name=name, heads=8), f"specs/{name}.yaml") for name in ("b", "a", "c")]
    files = project_of(specs)
    assert list(files) == sorted(files)
    assert list(project_of(specs[::-1]).items()) == list(files.items())


def test_comments_and_order_of_keys_change_nothing() -> None:
    text = SPEC.format(name="one", heads=8)
    lines = text.splitlines()
    shuffled = "\n".join(["# a comment", *lines[8:], *lines[7:8], *lines[1:7], lines[0]]) + "\n"
    assert shuffled != text
    one, two = load_text(text, "specs/one.yaml"), load_text(shuffled, "specs/one.yaml")
    assert project_of([one]) == project_of([two])


def test_specs_of_one_name_are_refused(project: Path) -> None:
    (project / "specs/three.yaml").write_text(SPEC.format(name="one", heads=2))
    with pytest.raises(SpecError, match=r"specs/three\.yaml:1:7: .*one is taken by specs/one\.yaml"):
        rendered("specs")
    specs = [load_text(SPEC.format(name="a", heads=8), path) for path in ("specs/x.yaml", "specs/y.yaml")]
    with pytest.raises(InputError, match="same name: a"):
        project_of(specs)


def test_the_problems_of_all_specs_at_once(project: Path) -> None:
    for name in ("one.yaml", "two.yml"):
        text = (project / "specs" / name).read_text()
        (project / "specs" / name).write_text(text.replace("num_kv_heads: 2", "num_kv_heads: 3"))
    with pytest.raises(SpecError) as caught:
        rendered("specs")
    assert [problem.path for problem in caught.value.diagnostics] == ["specs/one.yaml", "specs/two.yml"]


def test_specs_that_no_plan_fits_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits_none(loaded: LoadedSpec) -> object:
        raise SpecError(loaded.diagnose([Problem("KG401", ("name",), "does not fit")]))

    monkeypatch.setattr(lower, "lower", fits_none)
    specs = [load_text(SPEC.format(name=name, heads=8), f"specs/{name}.yaml") for name in ("a", "b")]
    with pytest.raises(SpecError) as caught:
        project_of(specs)
    assert [problem.path for problem in caught.value.diagnostics] == ["specs/a.yaml", "specs/b.yaml"]


@pytest.mark.parametrize(
    ("file", "argument", "header", "out"),
    [
        ("specs/one.yaml", "specs/one.yaml", "specs/one.yaml", "generated"),
        ("specs/one.yaml", "specs", "specs/one.yaml", "generated"),
        ("deep/specs/one.yaml", "deep/specs", "specs/one.yaml", "deep/generated"),
        ("specs/more/one.yaml", "specs/more", "specs/more/one.yaml", "generated"),
        ("mine/one.yaml", "mine/one.yaml", "mine/one.yaml", "generated"),
        ("a/b/mine/one.yaml", "a/b/mine", "mine/one.yaml", "a/b/generated"),
        ("specs with space/one.yaml", "specs with space", "specs with space/one.yaml", "generated"),
    ],
)
def test_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, argument: str, header: str, out: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(SPEC.format(name="one", heads=8))
    monkeypatch.chdir(tmp_path)
    for given in (Path(argument), tmp_path / argument):
        found = workspace.find([given])
        assert [source.header for source in found.sources] == [header]
        assert found.out == tmp_path / out
    monkeypatch.chdir((tmp_path / file).parent)
    found = workspace.find([Path("one.yaml")])
    assert [source.header for source in found.sources] == [header]
    assert found.out == tmp_path / out
    assert workspace.find([Path("one.yaml")], Path("o")).out == (tmp_path / file).parent / "o"


def test_what_counts_as_the_whole_folder(project: Path) -> None:
    (project / "specs/more").mkdir()
    (project / "specs/more/three.yaml").write_text(SPEC.format(name="three", heads=2))
    (project / "others").mkdir()
    (project / "others/four.yaml").write_text(SPEC.format(name="four", heads=2))

    def owner(*paths: str, out: str | None = None) -> str | None:
        return workspace.find([Path(path) for path in paths], None if out is None else Path(out)).owner

    assert owner("specs") == owner("specs/") == owner("specs", "specs/one.yaml") == "specs"
    assert owner(str(project / "specs"), out="elsewhere") == "specs"
    assert owner("specs/one.yaml") is None
    assert owner("specs/one.yaml", "specs/two.yml") is None
    assert owner("specs/more") is None
    assert owner("specs", "others", out="o") is None
    with pytest.raises(InputError, match="several folders"):
        owner("specs", "others")


def test_a_path_given_twice_counts_once(project: Path) -> None:
    found = workspace.find([Path("specs"), Path("specs/one.yaml"), project / "specs/one.yaml"])
    assert [source.shown for source in found.sources] == ["specs/one.yaml", "specs/two.yml"]


def test_the_arguments_can_be_typed_again(project: Path) -> None:
    (project / "a b").mkdir()
    (project / "a b/one.yaml").write_text(SPEC.format(name="one", heads=8))
    assert workspace.find([Path("a b")], Path("o u t")).arguments_text == "'a b/' --out 'o u t'"
    assert workspace.find([Path("specs")]).arguments_text == "specs/"
