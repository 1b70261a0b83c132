"""The house: each layer imports only layers below it, and no module imports itself by a detour."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import stratagem

PACKAGE = Path(stratagem.__file__).parent

# Bottom to top; the names on one line are neighbours that must not import each other.
LAYERS: list[set[str]] = [
    {"errors", "environment", "lazy"},
    {"cluster"},
    {"devices"},
    {"runtime"},
    {"keep", "data"},
    {"tables"},
    {"waist"},
    {"collectives", "parameters"},
    {"engines"},
    {"strategies"},
    {"training"},
    {
        "keras",
        "flax",
        "classic.estimator",
        "classic.deploy",
        "classic.coordinator",
        "tools.emit",
        "tools.planning",
    },
    {"tools.bench", "tools.checking"},
    {"tools.launch"},
]
LEVEL = {layer: level for level, layers in enumerate(LAYERS) for layer in layers}
# Packages that are rooms for layers, not layers themselves.
ROOMS = {"classic", "tools"}
# `stratagem` itself (the lazy public list) and `python -m stratagem` stand above all.
ROOF = {"", "__main__"}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def imports(name: str, path: Path) -> set[str]:
    """The modules of the package that `path` imports anywhere in it, lazily or not."""
    known = modules()
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively: write the whole name"
            for alias in node.names:  # what is imported may be a module, or a name in one
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("stratagem.") in known else str(node.module))
    ours = {found_name.removeprefix("stratagem").lstrip(".") for found_name in found if _is_ours(found_name)}
    return {target for target in ours if target in known and target != name}


def _is_ours(name: str) -> bool:
    return name == "stratagem" or name.startswith("stratagem.")


def layer_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in ROOMS else 1])


def wrong_imports(name: str) -> list[str]:
    """What a module imports that is not below it."""
    own = layer_of(name)
    assert own in LEVEL, f"{own} is in no layer: add it to LAYERS where DESIGN puts it"

    def is_below(target: str) -> bool:
        if target in ROOF:
            return own == "tools.launch"
        other = layer_of(target)
        return other == own or LEVEL[other] < LEVEL[own]

    return [f"{name} imports {target}" for target in imports(name, modules()[name]) if not is_below(target)]


def test_imports_point_down() -> None:
    assert [each for name in sorted(set(modules()) - ROOF - ROOMS) for each in wrong_imports(name)] == []


def test_every_layer_stands() -> None:
    assert set(LEVEL) == {layer_of(name) for name in set(modules()) - ROOF - ROOMS}


def maps() -> dict[str, set[str]]:
    """The modules and packages that the map in a package's docstring names, for each package that has one."""
    found = {}
    for path in PACKAGE.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if "A map" in text:
            places = [line.split("  ")[0] for line in re.findall("^    (.*)", text, re.MULTILINE)]
            found[str(path.parent.relative_to(PACKAGE))] = set(", ".join(places).split(", "))
    return found


@pytest.mark.parametrize(("package", "named"), maps().items())
def test_a_map_names_every_module(package: str, named: set[str]) -> None:
    inside = {path.stem for path in (PACKAGE / package).glob("*.py")} - {"__init__"}
    assert named == inside | {path.parent.name for path in (PACKAGE / package).glob("*/__init__.py")}


def test_no_module_imports_itself_by_a_detour() -> None:
    # A package's __init__ re-exports its modules, and importing a module runs its package: not a cycle.
    graph = {
        name: {target for target in imports(name, path) if not name.startswith(f"{target}.")}
        for name, path in modules().items()
        if name not in ROOF | ROOMS
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", ["stratagem", "stratagem.cluster", "stratagem.tools.launch.cli"])
def test_starts_without_jax(module: str) -> None:
    code = f"import sys, {module}; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
