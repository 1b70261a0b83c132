"""A user's function as programs: traced once for each shape of arguments and each platform."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem.devices import log_placement
from stratagem.errors import ProtocolError, VariableMismatch
from stratagem.runtime.programs import Program, export_program
from stratagem.runtime.remote_variable import RemoteVariable
from stratagem.runtime.values import to_array

ArgumentKind: TypeAlias = tuple[tuple[int, ...], Any, bool]
"""Shape and dtype of an argument, and whether it is a byte string."""


@dataclass(frozen=True)
class Shipment:
    """A program for one shape of arguments, and how to put together what it returns.

    Attributes:
        program: The program; its outputs are the values for variables, then the leaves of the result.
        result: The result's tree.
        are_bytes: Which leaves of the result are byte strings.
    """

    program: Program
    result: Any
    are_bytes: tuple[bool, ...]


class Shipments:
    """All programs of one function.

    Args:
        fn: The function, of arrays, RemoteVariables, or trees of them.
        variables: What its first results are for: variables such as these.
    """

    def __init__(self, fn: Callable[..., Any], variables: Sequence[RemoteVariable]) -> None:
        self._fn = fn
        self._variables = list(variables)
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._known: dict[Any, Shipment] = {}
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def serve(self, variables: Sequence[RemoteVariable]) -> bool:
        """Whether the first results are also fit for these variables."""
        return [(each.shape, each.dtype) for each in variables] == [
            (each.shape, each.dtype) for each in self._variables
        ]

    def log(self, shipment: Shipment, place: str) -> None:
        """Write into the placement log that a program runs somewhere, once."""
        key = (shipment.program.content_hash, place)
        if key not in self._logged:
            self._logged.add(key)
            log_placement(self._name, "Program", place)

    def find(self, tree: Any, kinds: tuple[ArgumentKind, ...], platform: str) -> Shipment:
        """The program for such arguments, traced when they are first seen."""
        key = (tree, kinds, platform)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._trace(tree, kinds, platform)
            return self._known[key]

    def _trace(self, tree: Any, kinds: tuple[ArgumentKind, ...], platform: str) -> Shipment:
        result: Any = None
        are_bytes: tuple[bool, ...] = ()
        takes_bytes = any(is_bytes for *_, is_bytes in kinds)

        def flat(*leaves: Any) -> list[Any]:
            nonlocal result, are_bytes
            args, kwargs = jax.tree.unflatten(tree, leaves)
            values, rest = self._split(self._fn(*args, **kwargs))
            rest_leaves, result = jax.tree.flatten(rest, is_leaf=is_leaf)
            travelling = [self._travelling(leaf) for leaf in rest_leaves]
            are_bytes = tuple(
                is_bytes or (takes_bytes and getattr(leaf, "dtype", None) == np.uint8 and np.ndim(leaf) == 1)
                for leaf, is_bytes in travelling
            )
            return [*values, *(leaf for leaf, _ in travelling)]

        examples = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in kinds]
        return Shipment(export_program(flat, *examples, platform=platform), result, are_bytes)

    def _travelling(self, leaf: Any) -> tuple[Any, bool]:
        """A leaf of what the function returned, as an array, and whether it stands for a byte string."""
        if isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__"):  # also what is traced
            return leaf, False
        try:
            return to_array(leaf)
        except ProtocolError as error:
            raise ProtocolError(
                f"{self._name} returned {leaf!r:.80}; a function that runs on a task may return arrays, numbers, bytes, "
                f"None, and tuples, lists and dictionaries of them: {error}"
            ) from None

    def _split(self, returned: Any) -> tuple[list[Any], Any]:
        """What a call of the function returned, as the values for variables and the rest."""
        count = len(self._variables)
        if count == 0:
            return [], returned
        parts = returned if isinstance(returned, tuple) else (returned,)
        if len(parts) < count:
            raise VariableMismatch(
                f"the function returns {len(parts)} values, and {count} variables are to be assigned: return the new "
                "values first, in the order of assign_to and then of add_to, then the result"
            )
        for variable, value in zip(self._variables, parts, strict=False):
            shape, dtype = np.shape(value), getattr(value, "dtype", None)
            if shape != variable.shape or str(dtype) != variable.dtype:
                raise VariableMismatch(
                    f"the function returns {dtype}{list(shape)} for variable {variable.name!r}, which is "
                    f"{variable.dtype}{list(variable.shape)}"
                )
        rest = parts[count:]
        return list(parts[:count]), None if not rest else rest[0] if len(rest) == 1 else rest


def is_leaf(value: Any) -> bool:
    """Whether a value travels as one, though JAX might look into it."""
    return isinstance(value, bytes | RemoteVariable)
