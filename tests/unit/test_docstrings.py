"""Every public method is described: by itself, or by the base class that declares it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stratagem


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """All classes by their names, of which some stand for different things in different packages."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    for path in Path(stratagem.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name, []).append(node)
    return by_name


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods that say what they do: not attributes that an interface declares, nor setters beside getters."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not (is_attribute(each) or is_setter(each)):
            yield each


def is_attribute(method: ast.FunctionDef) -> bool:
    return [ast.unparse(each) for each in method.body] == ["..."] and bool(method.decorator_list)


def is_setter(method: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in method.decorator_list)


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def is_described(name: str, node: ast.ClassDef) -> bool:
    """Whether a class or one of its bases, however far up, describes a method."""
    if any(each.name == name and ast.get_docstring(each) for each in methods(node)):
        return True
    return any(
        base not in classes()
        or any(is_described(name, other) for other in classes()[base] if other is not node)
        for base in bases(node)
        if base not in {"Protocol", "ABC", "Generic"}
    )


def test_every_public_method_is_described() -> None:
    undescribed = [
        f"{name}.{method.name}"
        for name, nodes in classes().items()
        if not name.startswith("_")
        for node in nodes
        for method in methods(node)
        if not method.name.startswith("_")
        if not is_described(method.name, node)
    ]
    assert undescribed == []
