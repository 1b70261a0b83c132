"""What `export_program` makes: deterministic bytes, flat arrays, and errors that point at the user's line."""

import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs import ProgramCache, TensorSpec, export_program

SOURCE = "def step(x):\n    return jnp.sin(x) @ x.T + jax.random.normal(jax.random.key(0), (2, 2))\n"


def test_equal_functions_are_equal_bytes() -> None:
    programs = []
    for number in range(3):
        namespace: dict[str, Any] = {"jax": jax, "jnp": jnp}
        # Other files, other lines, nothing remembered from the last time.
        exec(compile("\n" * number + SOURCE, f"file{number}.py", "exec"), namespace)
        jax.clear_caches()
        programs.append(export_program(namespace["step"], np.zeros((2, 3), np.float32)))
    assert len({program.artifact for program in programs}) == 1
    assert len({program.content_hash for program in programs}) == 1
    assert b"file0" not in programs[0].artifact


def test_other_functions_and_shapes_have_other_hashes() -> None:
    hashes = {
        export_program(fn, np.zeros(size, np.float32)).content_hash
        for fn in (jnp.sin, jnp.cos)
        for size in (2, 3)
    }
    assert len(hashes) == 4


def test_trees_become_flat_and_back() -> None:
    def fn(pair: Any, table: dict[str, Any]) -> Any:
        return {"sum": pair[0] + pair[1], "rest": [table["x"], None, 7]}

    program = export_program(fn, (np.zeros(2, np.float32), 1.0), {"x": np.int32(3)})
    assert program.inputs == (
        TensorSpec((2,), "float32"),
        TensorSpec((), "float32"),
        TensorSpec((), "int32"),
    )
    assert program.name == "fn"
    flat = program.flatten((np.ones(2), 2), {"x": np.int32(4)})
    assert [array.dtype.name for array in flat] == ["float32", "float32", "int32"]
    assert program.unflatten([1, 2, 3]) == {"rest": [1, None, 2], "sum": 3}


def test_numbers_keep_their_weak_types() -> None:
    program = export_program(lambda x, rate: x * rate, jnp.zeros(2, jnp.bfloat16), 0.1)
    assert program.outputs == (TensorSpec((2,), "bfloat16"),)


def test_shapes_are_enough() -> None:
    class Handle:
        shape, dtype = (3,), np.dtype("float32")

    struct = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert (
        export_program(jnp.sin, Handle()).artifact
        == export_program(jnp.sin, struct).artifact
        == export_program(jnp.sin, jnp.zeros(3)).artifact
    )
    handle = Handle()
    assert export_program(jnp.sin, struct).flatten(handle) == [handle]


def test_errors_of_the_function_come_through_with_its_line() -> None:
    def wrong(x: Any) -> Any:
        return x @ jnp.zeros((7, 7))  # this line

    with pytest.raises(TypeError, match="dot_general") as caught:
        export_program(wrong, np.zeros((2, 3)))
    assert any(frame.line and "# this line" in frame.line for frame in traceback.extract_tb(caught.tb))


def test_a_branch_on_a_value_is_the_user_s_error() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError):
        export_program(lambda x: 1 if x > 0 else 2, 1.0)


def test_callbacks_are_refused() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(ProgramRefused, match=r"calls back into Python \(jax.debug.print"):
        export_program(printing, 1.0)


def test_typed_keys_are_refused_with_advice() -> None:
    key = jax.random.key(0)
    with pytest.raises(ProgramRefused, match=r"argument \[0\]\['k'\] has the dtype key<fry>.*key_data"):
        export_program(lambda table: table, {"k": key})
    with pytest.raises(ProgramRefused, match="the result has the dtype key<fry>"):
        export_program(lambda: jax.random.key(0))


def test_several_devices_are_refused() -> None:
    def collective(x: Any) -> Any:
        return jax.vmap(lambda y: jax.lax.psum(y, "i"), axis_name="i")(x)  # over an axis of an array: fine

    export_program(collective, np.zeros(3))
    mesh = jax.sharding.AbstractMesh((2,), ("i",))
    spec = jax.sharding.PartitionSpec("i")

    def sharded(x: Any) -> Any:
        return jax.shard_map(
            lambda y: jax.lax.psum(y, "i"), mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()
        )(x)

    with pytest.raises(ProgramRefused, match=r"sdy\.mesh at its top.*leave out meshes and shard_map"):
        export_program(sharded, np.zeros(4))


def test_a_sharding_constraint_on_one_device_is_dropped(cache: ProgramCache) -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    program = export_program(lambda x: jax.lax.with_sharding_constraint(x * 2, sharding), np.ones(4))
    (result,) = cache.load(program.artifact)([np.ones(4, np.float32)])
    np.testing.assert_array_equal(result, np.full(4, 2))


def test_other_refusals() -> None:
    with pytest.raises(ProgramRefused, match=r"argument \[1\] is a str"):
        export_program(lambda x, name: x, 1.0, "mean")
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(ProgramRefused, match="fixed shapes"):
        export_program(jnp.sin, jax.ShapeDtypeStruct((size,), jnp.float32))
    with pytest.raises(ProgramRefused, match="custom call to 'ApproxTopK'"):
        export_program(lambda x: jax.lax.approx_max_k(x, 2), np.zeros(4))


def test_arguments_that_do_not_fit() -> None:
    program = export_program(lambda x: x["a"], {"a": np.zeros(3, np.float32)})
    with pytest.raises(ProgramRefused, match="was exported for arguments"):
        program.flatten({"b": np.zeros(3)})
    with pytest.raises(ProgramRefused, match=r"takes float32\[3\].*called with float32\[4\]"):
        program.flatten({"a": np.zeros(4, np.float32)})
    with pytest.raises(ProgramRefused, match=r"takes float32\[3\].*called with int32\[3\]"):
        program.flatten({"a": np.zeros(3, np.int32)})
