"""What a server refuses, each thing built for real and packed into a container of `jax.export`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs import Inspector, ProgramCache, export_program, verify
from unit.runtime.programs.crafting import FOUR, around, artifact, exported, function, sine_of_four

FORBIDDEN = {
    "stablehlo.infeed": """
        %t = stablehlo.create_token : !stablehlo.token
        %0:2 = "stablehlo.infeed"(%t) {infeed_config = "", layout = [[0]]}
            : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
        return %0#0 : tensor<4xf32>""",
    "stablehlo.outfeed": """
        %t = stablehlo.create_token : !stablehlo.token
        %0 = "stablehlo.outfeed"(%a, %t) {outfeed_config = ""}
            : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
        return %a : tensor<4xf32>""",
    "stablehlo.send": """
        %t = stablehlo.create_token : !stablehlo.token
        %0 = "stablehlo.send"(%a, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
            is_host_transfer = true} : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
        return %a : tensor<4xf32>""",
    "stablehlo.recv": """
        %t = stablehlo.create_token : !stablehlo.token
        %0:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>,
            is_host_transfer = true} : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
        return %0#0 : tensor<4xf32>""",
    "stablehlo.all_reduce": """
        %0 = "stablehlo.all_reduce"(%a) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
        }) {replica_groups = dense<0> : tensor<1x1xi64>} : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>""",
    "stablehlo.all_gather": """
        %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}
            : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>""",
    "stablehlo.collective_permute": """
        %0 = "stablehlo.collective_permute"(%a) {source_target_pairs = dense<0> : tensor<1x2xi64>}
            : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>""",
    "stablehlo.partition_id": """
        %0 = "stablehlo.partition_id"() : () -> tensor<ui32>
        %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<f32>
        %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4xf32>
        return %2 : tensor<4xf32>""",
    "stablehlo.dynamic_broadcast_in_dim": """
        %s = stablehlo.constant dense<4> : tensor<1xi32>
        %0 = stablehlo.dynamic_broadcast_in_dim %a, %s, dims = [0] : (tensor<4xf32>, tensor<1xi32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>""",
    "stablehlo.get_dimension_size": """
        %0 = stablehlo.get_dimension_size %a, dim = 0 : (tensor<4xf32>) -> tensor<i32>
        %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
        %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4xf32>
        return %2 : tensor<4xf32>""",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_operations_that_leave_the_device_or_the_shape(name: str, inspector: Inspector) -> None:
    with pytest.raises(ProgramRefused, match=rf"operation {name}|token") as refused:
        verify(around(FORBIDDEN[name]), inspector=inspector)
    assert "allowed" in str(refused.value)


def test_a_forbidden_operation_deep_inside_is_found(inspector: Inspector) -> None:
    body = """
        %0 = "stablehlo.while"(%a) ({
        ^bb0(%x: tensor<4xf32>):
            %f = stablehlo.constant dense<false> : tensor<i1>
            stablehlo.return %f : tensor<i1>
        }, {
        ^bb0(%x: tensor<4xf32>):
            %p = "stablehlo.replica_id"() : () -> tensor<ui32>
            %q = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
            %y = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> tensor<4xf32>
            stablehlo.return %y : tensor<4xf32>
        }) : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>"""
    with pytest.raises(ProgramRefused, match=r"operation stablehlo\.replica_id, which a server does not run"):
        verify(around(body), inspector=inspector)


@pytest.mark.parametrize(
    "target", ["evil", "xla_ffi_python_cpu_callback", "xla_python_cpu_callback", "Sharding"]
)
def test_custom_calls_that_are_not_listed(target: str, inspector: Inspector) -> None:
    body = f"""
        %0 = stablehlo.custom_call @{target}(%a) {{has_side_effect = true}} : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>"""
    with pytest.raises(
        ProgramRefused, match=rf"custom call to '{target}'.*on cpu; allowed there.*lapack_cgeev_ffi"
    ):
        verify(around(body), inspector=inspector)


def test_custom_calls_of_another_platform(inspector: Inspector) -> None:
    program = export_program(jnp.linalg.qr, np.zeros((3, 3), np.float32), platform="cuda")
    assert verify(program.artifact, platform="cuda", inspector=inspector).summary.custom_calls == (
        "cusolver_geqrf_ffi",
        "cusolver_orgqr_ffi",
    )
    with pytest.raises(ProgramRefused, match=r"for 'cuda' and this server's device is 'cpu'"):
        verify(program.artifact, inspector=inspector)
    disguised = dataclasses.replace(export.deserialize(bytearray(program.artifact)), platforms=("cpu",))
    with pytest.raises(ProgramRefused, match="custom call to 'cusolver_geqrf_ffi'"):
        verify(bytes(disguised.serialize()), inspector=inspector)


def test_a_kernel_with_a_buffer_too_small(inspector: Inspector) -> None:
    # Run, this would write 36 MB over the heap.
    big = np.zeros((3000, 3000), np.float32)
    body = """
        %0:2 = stablehlo.custom_call @lapack_sgeqrf_ffi(%a) {api_version = 4 : i32, backend_config = {}}
            : (tensor<3000x3000xf32>) -> (tensor<1x1xf32>, tensor<4xf32>)
        return %0#1 : tensor<4xf32>"""
    hostile = artifact(function(body, argument="tensor<3000x3000xf32>"), [big], [FOUR])
    with pytest.raises(
        ProgramRefused, match=r"'lapack_sgeqrf_ffi' is malformed: \(float32\[3000,3000\]\) ->"
    ):
        verify(hostile, inspector=inspector)


@pytest.mark.parametrize("configuration", ['backend_config = "x"', "api_version = 2 : i32"])
def test_a_kernel_called_past_its_typed_interface(configuration: str, inspector: Inspector) -> None:
    body = f"""
        %0:2 = stablehlo.custom_call @lapack_sgeqrf_ffi(%a) {{{configuration}}}
            : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
        return %0#1 : tensor<4xf32>"""
    hostile = artifact(function(body, argument="tensor<4x4xf32>"), [np.zeros((4, 4), np.float32)], [FOUR])
    with pytest.raises(ProgramRefused, match=r"typed interface|no dictionary of attributes"):
        verify(hostile, inspector=inspector)


def test_recursion(inspector: Inspector) -> None:
    text = """module {
        func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
            %0 = call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
            return %0 : tensor<4xf32>
        }
        func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {
            %0 = call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
            return %0 : tensor<4xf32>
        } }"""
    with pytest.raises(ProgramRefused, match="'f' calls itself"):
        verify(artifact(text, [FOUR], [FOUR]), inspector=inspector)


def test_shapes_that_are_not_fixed(inspector: Inspector) -> None:
    polymorphic = export.export(jax.jit(lambda x: (x * 2,)), platforms=["cpu"])(
        jax.ShapeDtypeStruct(export.symbolic_shape("n"), jnp.float32)
    )
    with pytest.raises(ProgramRefused, match="fixed"):
        verify(bytes(polymorphic.serialize()), inspector=inspector)
    hidden = dataclasses.replace(
        sine_of_four(), mlir_module_serialized=polymorphic.mlir_module_serialized, uses_global_constants=False
    )
    with pytest.raises(ProgramRefused, match=r"tensor<\?xf32>, whose shape is not fixed|does not run"):
        verify(bytes(hidden.serialize()), inspector=inspector)


@pytest.mark.parametrize("size", ["0x9000000000000000000", "4611686018427387904x4611686018427387904x0"])
def test_sizes_that_overflow(size: str, inspector: Inspector) -> None:
    body = f"""
        %0 = stablehlo.iota dim = 1 : tensor<{size}xf32>
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = {list(range(size.count("x") + 1))}
            : (tensor<{size}xf32>, tensor<f32>) -> tensor<f32>
        %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4xf32>
        return %2 : tensor<4xf32>"""
    with pytest.raises(ProgramRefused, match="no memory can hold"):
        verify(around(body), inspector=inspector)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nr_devices": 2}, "for 2 devices; only programs for one"),
        ({"platforms": ("cuda",)}, "for 'cuda' and this server's device is 'cpu'"),
        ({"platforms": ("cpu", "cuda")}, "for 2 platforms"),
        ({"disabled_safety_checks": (export.DisabledSafetyCheck.platform(),)}, "disabled safety checks"),
        ({"uses_global_constants": True}, "not fixed"),
        ({"calling_convention_version": 99}, "calling convention 99; this server's JAX knows"),
        ({"module_kept_var_idx": (3,)}, "used inputs does not fit"),
        ({"module_kept_var_idx": ()}, r"container says \(\) -> .* its module \(float32\[4\]\)"),
        ({"mlir_module_serialized": b"module {}"}, "not a StableHLO portable artifact"),
        ({"mlir_module_serialized": b"ML\xefR garbage"}, "cannot be read"),
        (
            {"in_avals": (jax.core.ShapedArray((5,), np.dtype("float32")),)},
            r"container says \(float32\[5\]\) -> \(float32\[4\]\), its module \(float32\[4\]\)",
        ),
        (
            {"out_avals": (jax.core.ShapedArray((4,), np.dtype("int32")),)},
            r"container says \(float32\[4\]\) -> \(int32\[4\]\)",
        ),
        ({"in_tree": jax.tree.structure((([0],), {}))}, "not flat"),
        ({"out_tree": jax.tree.structure([0])}, "not flat"),
        ({"out_tree": jax.tree.structure({"x": 0})}, "not flat"),
    ],
)
def test_containers_that_say_something_else(
    changes: dict[str, Any], message: str, inspector: Inspector
) -> None:
    changed = dataclasses.replace(sine_of_four(), **changes)
    with pytest.raises(ProgramRefused, match=message):
        verify(bytes(changed.serialize()), inspector=inspector)


def test_a_derivative_is_not_taken(inspector: Inspector) -> None:
    with pytest.raises(ProgramRefused, match="carries its derivative"):
        verify(bytes(sine_of_four().serialize(vjp_order=1)), inspector=inspector)


def test_shardings_in_the_container(inspector: Inspector) -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    sharded = export.export(jax.jit(lambda x: (x,), in_shardings=sharding), platforms=["cpu"])(FOUR)
    with pytest.raises(ProgramRefused, match="shardings"):
        verify(bytes(sharded.serialize()), inspector=inspector)


def test_a_module_without_main(inspector: Inspector) -> None:
    text = (
        "module { func.func public @other(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }"
    )
    with pytest.raises(ProgramRefused, match="no function `main`"):
        verify(artifact(text, [FOUR], [FOUR]), inspector=inspector)


def test_what_jax_itself_exports_is_accepted(inspector: Inspector) -> None:
    summary = verify(bytes(sine_of_four().serialize()), inspector=inspector).summary
    assert summary.outputs == summary.inputs
    assert exported([FOUR], [FOUR]).nr_devices == 1


@pytest.mark.parametrize("options", ["k = 2 : i64", 'k = "x"', "k = 100 : i64", "k = 3 : i32", ""])
def test_composites_that_do_not_keep_their_word_become_calls(options: str, cache: ProgramCache) -> None:
    """XLA believes the name of a top-k and its k, to the point of crashing on one that is a string."""
    text = f"""module {{
        func.func public @main(%a: tensor<4xf32>) -> tensor<3xf32> {{
            %0:2 = stablehlo.composite "chlo.top_k" %a
                {{composite_attributes = {{{options}}}, decomposition = @f, version = 1 : i32}}
                : (tensor<4xf32>) -> (tensor<3xf32>, tensor<3xi32>)
            return %0#0 : tensor<3xf32>
        }}
        func.func private @f(%a: tensor<4xf32>) -> (tensor<3xf32>, tensor<3xi32>) {{
            %0 = stablehlo.slice %a [0:3] : (tensor<4xf32>) -> tensor<3xf32>
            %1 = stablehlo.iota dim = 0 : tensor<3xi32>
            return %0, %1 : tensor<3xf32>, tensor<3xi32>
        }} }}"""
    program = cache.load(artifact(text, [FOUR], [np.zeros(3, np.float32)]))
    (result,) = program([np.arange(4, dtype=np.float32)])
    np.testing.assert_array_equal(result, [0, 1, 2])
