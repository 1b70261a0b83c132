"""Makes artifacts that no honest client would: any StableHLO text in a real `jax.export` container."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax._src.interpreters import mlir
from jax.extend.mlir import serialize_portable_artifact
from jaxlib.mlir import ir


def bytecode(text: str) -> bytes:
    """A module's text as a portable artifact; collectives and the like included."""
    with mlir.make_ir_context():
        return bytes(serialize_portable_artifact(ir.Module.parse(text), "1.9.0", True))


def exported(inputs: list[Any], outputs: list[Any], **changes: Any) -> export.Exported:
    """An `Exported` that says it takes and returns arrays like these."""

    def shaped(arrays: list[Any]) -> tuple[Any, ...]:
        return tuple(jax.core.ShapedArray(array.shape, array.dtype) for array in arrays)

    honest = export.export(jax.jit(lambda *arrays: arrays), platforms=["cpu"])(*inputs)
    return dataclasses.replace(
        honest,
        out_avals=shaped(outputs),
        out_tree=jax.tree.structure(tuple(range(len(outputs)))),
        _out_named_shardings=(None,) * len(outputs),
        out_shardings_hlo=(None,) * len(outputs),
        module_kept_var_idx=tuple(range(len(inputs))),
        **changes,
    )


def artifact(text: str, inputs: list[Any], outputs: list[Any], **changes: Any) -> bytes:
    """The container with that module in it."""
    return bytes(exported(inputs, outputs, mlir_module_serialized=bytecode(text), **changes).serialize())


def function(body: str, result: str = "tensor<4xf32>", argument: str = "tensor<4xf32>") -> str:
    """A module of one function that takes `%a`; the body must return."""
    return f"module {{ func.func public @main(%a: {argument}) -> {result} {{\n{body}\n}} }}"


FOUR = np.zeros(4, np.float32)


def around(body: str) -> bytes:
    """An artifact from four floats to four floats."""
    return artifact(function(body), [FOUR], [FOUR])


def sine_of_four() -> export.Exported:
    """An honest export, to be changed."""
    flat = jax.jit(lambda x: (jnp.sin(x),))
    return export.export(flat, platforms=["cpu"])(FOUR)
