"""Make programs: trace a function, flatten its arguments and results, and export it to bytes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.tree_util import PyTreeDef
from jaxlib.mlir.dialects import stablehlo

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs.canonical import new_context, serialize, strip
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.programs.verification import check_agreement, content_hash, read_container
from stratagem.runtime.programs.walk import walk

# The dtypes that JAX narrows 64-bit arrays to when it traces without x64.
_NARROWED = {
    "float32": ("float64",),
    "int32": ("int64",),
    "uint32": ("uint64",),
    "complex64": ("complex128",),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function as bytes that any server of its platform can run.

    Only `artifact` is shipped. The trees stay here: they turn the caller's arguments into flat arrays, and flat results into
    the function's result.

    Attributes:
        name: Name of the function, for logs.
        artifact: The bytes to ship.
        content_hash: SHA-256 of the artifact, in hexadecimal: equal functions have equal hashes.
        platform: The platform it was exported for.
        inputs: Flat inputs.
        outputs: Flat outputs.
        in_tree: Structure of the positional arguments, as a tuple.
        out_tree: Structure of the result.
    """

    name: str
    artifact: bytes = dataclasses.field(repr=False)
    content_hash: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    in_tree: PyTreeDef = dataclasses.field(repr=False)
    out_tree: PyTreeDef = dataclasses.field(repr=False)

    def flatten(self, *args: Any) -> list[Any]:
        """Return the arguments as flat leaves, checked for structure and shapes.

        Python numbers become arrays of the program's dtypes, and so do arrays that JAX would have converted when it traced
        (such as float64 without x64). Anything else with `.shape` and `.dtype` is left as it is.

        Raises:
            ProgramRefused: The program was exported for other arguments.
        """
        leaves, tree = jax.tree.flatten(args)
        if tree != self.in_tree:
            raise ProgramRefused(
                f"program {self.name!r} was exported for arguments {self.in_tree} and is called with {tree}; "
                "export it again for these"
            )
        return [_fit(self.name, *pair) for pair in enumerate(zip(leaves, self.inputs, strict=True))]

    def unflatten(self, results: Sequence[Any]) -> Any:
        """Return flat results in the structure of the function's result."""
        return jax.tree.unflatten(self.out_tree, results)


def export_program(fn: Callable[..., Any], *example_args: Any, platform: str = "cpu") -> Program:
    """Trace a function for arguments like these, and export it.

    Errors that the function raises while it is traced are raised as they are.

    Example:
        >>> program = export_program(lambda x, y: {"sum": x + y}, np.zeros(3), 1.0)
        >>> str(program.outputs[0])
        'float32[3]'

    Args:
        fn: A function of arrays that JAX can trace. Arguments and result may be any pytrees.
        *example_args: Arrays, Python numbers, or anything with a shape and a dtype; values do not matter.
        platform: Where it is to run: `cpu`, `cuda`, `rocm` or `tpu`.

    Raises:
        ProgramRefused: The function cannot be shipped: callbacks, several devices, typed keys and the like.
    """
    paths, in_tree = jax.tree_util.tree_flatten_with_path(example_args)
    specs = [_example(f"argument {jax.tree_util.keystr(path)}", leaf) for path, leaf in paths]
    out_tree: PyTreeDef | None = None

    def program(*flat: Any) -> tuple[Any, ...]:
        nonlocal out_tree
        leaves, out_tree = jax.tree.flatten(fn(*jax.tree.unflatten(in_tree, flat)))
        return tuple(leaves)

    jitted = jax.jit(program)
    # Traced separately, so that errors of the user's function are not taken for errors of the export.
    traced = jitted.trace(*specs)
    for aval in jax.tree.leaves(traced.out_info):
        _refuse_key("the result", aval.dtype)
    try:
        exported = export.export(jitted, platforms=[platform])(*specs)
    except (ValueError, NotImplementedError) as error:
        raise ProgramRefused(f"the function cannot be shipped: {_explain(error)}") from error
    if exported.nr_devices != 1 or out_tree is None:
        raise ProgramRefused(
            f"the function is for {exported.nr_devices} devices; a program runs on one: leave out shard_map and "
            "meshes, or run it under a strategy"
        )
    exported = dataclasses.replace(
        exported, fun_name="program", mlir_module_serialized=_strip(exported.mlir_module_serialized)
    )
    artifact = bytes(exported.serialize())
    # The server checks the same; here the error is raised at the line that made the program.
    container = read_container(artifact, None)
    check_agreement(container, walk(container.module, platform, None))
    return Program(
        name=getattr(fn, "__name__", type(fn).__name__),
        artifact=artifact,
        content_hash=content_hash(artifact),
        platform=platform,
        inputs=container.inputs,
        outputs=container.outputs,
        in_tree=in_tree,
        out_tree=out_tree,
    )


def _example(where: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an example as JAX sees it; its device does not matter."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        _refuse_key(where, leaf.dtype)
        shape = tuple(leaf.shape)
        if not all(isinstance(size, int | np.integer) for size in shape):
            raise ProgramRefused(f"{where} has the shape {shape}; programs need fixed shapes")
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak)
    if isinstance(leaf, bool | int | float | complex):
        kind = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)
    raise ProgramRefused(
        f"{where} is a {type(leaf).__name__}; programs take arrays and numbers: close over anything else"
    )


def _refuse_key(where: str, dtype: Any) -> None:
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise ProgramRefused(
            f"{where} has the dtype {dtype}, which has no form on the wire; pass jax.random.key_data(key) and "
            "wrap it inside the function with jax.random.wrap_key_data"
        )


def _fit(name: str, position: int, pair: tuple[Any, TensorSpec]) -> Any:
    leaf, spec = pair
    if (
        not hasattr(leaf, "shape")
        or not hasattr(leaf, "dtype")
        or (isinstance(leaf, np.ndarray | np.generic) and str(leaf.dtype) in _NARROWED.get(spec.dtype, ()))
    ):
        leaf = np.asarray(leaf, np.dtype(spec.dtype))
    if tuple(leaf.shape) != spec.shape or str(leaf.dtype) != spec.dtype:
        actual = TensorSpec(tuple(leaf.shape), str(leaf.dtype))
        raise ProgramRefused(
            f"program {name!r} takes {spec} as its flat argument {position} and is called with {actual}; "
            "export it again for this shape and dtype"
        )
    return leaf


def _explain(error: Exception) -> str:
    text = str(error)
    if "callback" in text or "keepalive" in text:
        return (
            "it calls back into Python (jax.debug.print, io_callback, pure_callback), and no Python is shipped: "
            "return the values instead"
        )
    return text.strip().split("\n%", 1)[0]


def _strip(module: bytes) -> bytes:
    context = new_context()
    parsed = stablehlo.deserialize_portable_artifact(context, module)
    with context:
        strip(parsed)
        return serialize(parsed)
