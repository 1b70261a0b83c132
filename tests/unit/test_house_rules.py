"""Rules of the house that a machine can check."""

import ast
from pathlib import Path

import pytest

import stratagem

PACKAGE = Path(stratagem.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
RUN_CODE_FROM_BYTES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_pickled(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [str(node.module)]
        assert not RUN_CODE_FROM_BYTES & {module.split(".")[0] for module in modules}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "environment.py"], ids=name_of)
def test_environment_variables_are_read_in_one_module(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in {"os.environ", "os.getenv", "os.environb", "os.putenv"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_input_is_never_checked_with_assert(path: Path) -> None:
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
