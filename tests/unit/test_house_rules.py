"""Rules of the house that a machine can check."""

import ast
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import stratagem

PACKAGE = Path(stratagem.__file__).parent
RUN_CODE_FROM_BYTES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
ENVIRONMENT = {"os.environ", "os.getenv", "os.environb", "os.putenv"}


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def places(is_wrong: Callable[[ast.AST], bool], besides: Iterable[str] = ()) -> list[str]:
    """File and line of everything that is wrong, but for some files."""
    return [
        f"{name}:{getattr(node, 'lineno', 1)}"
        for name, tree in trees().items()
        if name not in besides
        for node in ast.walk(tree)
        if is_wrong(node)
    ]


def test_the_whole_package_is_read() -> None:
    assert {"__init__.py", "parameters/store.py"} <= trees().keys()


def pickles(node: ast.AST) -> bool:
    match node:
        case ast.Import(names):
            return any(alias.name.split(".")[0] in RUN_CODE_FROM_BYTES for alias in names)
        case ast.ImportFrom(module):
            return str(module).split(".")[0] in RUN_CODE_FROM_BYTES
        case ast.keyword("allow_pickle", value):
            return not (isinstance(value, ast.Constant) and value.value is False)
    return False


def test_nothing_is_pickled() -> None:
    assert places(pickles) == []


def test_environment_variables_are_read_in_one_module() -> None:
    def reads(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and ast.unparse(node) in ENVIRONMENT

    assert places(reads, besides=["environment.py"]) == []
    assert {place.split(":")[0] for place in places(reads)} == {"environment.py"}


def test_input_is_never_checked_with_assert() -> None:
    assert places(lambda node: isinstance(node, ast.Assert)) == []


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []
