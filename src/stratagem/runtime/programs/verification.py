"""Decide whether a server runs a shipped program.

`jax.export` puts a container around a module. JAX's own reader follows what it finds in there: it builds pytrees of any
depth, evaluates dimensions as expressions, and looks up registered types. Here only the few fields are read that a program
for one device has, each within bounds; the rest must be empty. The inspector then walks the module.
"""

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import Any

from jax import export
from jax._src.export import serialization_generated

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs.inspector import Inspector
from stratagem.runtime.programs.summary import (
    DTYPE_OF_CONTAINER,
    ProgramLimits,
    ProgramSummary,
    TensorSpec,
    describe,
)
from stratagem.runtime.programs.walk import Findings

_schema: Any = serialization_generated
_DTYPES = {getattr(_schema.DType, name): dtype for name, dtype in DTYPE_OF_CONTAINER.items()}
_MOST_DIMENSIONS = 64
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Container:
    """The description of a module in a container.

    Attributes:
        inputs: Flat inputs.
        outputs: Flat outputs.
        used: Indices of the inputs that the module takes; it does not use the others.
        platform: The one platform that it was exported for.
        calling_convention: Version of the convention by which the module is called.
        module: The StableHLO portable artifact.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    used: tuple[int, ...]
    platform: str
    calling_convention: int
    module: bytes


def read_container(artifact: bytes, limits: ProgramLimits | None) -> Container:
    """Read an artifact's container.

    Raises:
        ProgramRefused: It is not such a container, or holds more than a program for one device needs.
    """
    if limits is not None and len(artifact) > limits.artifact_bytes:
        raise ProgramRefused(
            f"the program is {len(artifact)} bytes; the server's ProgramLimits.artifact_bytes is "
            f"{limits.artifact_bytes}: pass large arrays as inputs instead of closing over them"
        )
    try:
        return _read(artifact, limits or ProgramLimits())
    except (
        struct.error,
        IndexError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ) as error:
        # The flatbuffers library raises any of these, depending on where the damage is.
        raise ProgramRefused(
            "the program is not an artifact of jax.export, or is damaged; make it with export_program"
        ) from error


def _read(artifact: bytes, limits: ProgramLimits) -> Container:
    root = _schema.Exported.GetRootAsExported(artifact, 0)
    for kind, length in (
        ("shardings", root.UniqueNamedShardingsLength()),
        ("shardings", root.UniqueAbstractMeshesLength()),
        ("ordered effects", root.OrderedEffectsLength()),
        ("unordered effects", root.UnorderedEffectsLength()),
        ("disabled safety checks", root.DisabledChecksLength()),
    ):
        if length:
            raise ProgramRefused(f"the program has {kind}; only pure programs for one device are allowed")
    if root.Vjp() is not None:
        raise ProgramRefused("the program carries its derivative; export it without (vjp_order=0)")
    devices = root.NrDevices() or root.NrDevicesShort()
    if devices != 1:
        raise ProgramRefused(f"the program is for {devices} devices; only programs for one are allowed")
    if root.UsesGlobalConstants():
        raise ProgramRefused("the program has shapes that are not fixed, or is for several platforms")
    if root.PlatformsLength() != 1:
        raise ProgramRefused(f"the program is for {root.PlatformsLength()} platforms; export it for one")
    distinct = [
        _aval(root.UniqueAvals(i)) for i in range(_check_length(root.UniqueAvalsLength(), "types", limits))
    ]
    inputs = _avals(distinct, root.InAvalsIdxs, root.InAvalsIdxsLength(), "inputs", limits)
    outputs = _avals(distinct, root.OutAvalsIdxs, root.OutAvalsIdxsLength(), "outputs", limits)
    for index, length in (
        (root.InShardingsIdxs, root.InShardingsIdxsLength()),
        (root.OutShardingsIdxs, root.OutShardingsIdxsLength()),
    ):
        if any(index(i) for i in range(_check_length(length, "shardings", limits))):
            raise ProgramRefused("the program has shardings; only programs for one device are allowed")
    _check_length(root.ModuleKeptVarIdxLength(), "inputs", limits)
    used = tuple(root.ModuleKeptVarIdx(i) for i in range(root.ModuleKeptVarIdxLength()))
    if sorted(set(used)) != list(used) or (used and used[-1] >= len(inputs)):
        raise ProgramRefused("the program's list of used inputs does not fit its inputs")
    _check_flat(root, len(inputs), len(outputs))
    return Container(
        inputs,
        outputs,
        used,
        root.Platforms(0).decode(),
        root.CallingConventionVersion(),
        root.MlirModuleSerializedAsNumpy().tobytes(),
    )


def _check_length(length: int, kind: str, limits: ProgramLimits) -> int:
    # A length is whatever four bytes say: nothing is read by it before it was checked.
    most = {"inputs": limits.inputs, "outputs": limits.outputs}.get(kind, limits.inputs + limits.outputs)
    if length > most:
        raise ProgramRefused(f"the program has {length} {kind}; the server's ProgramLimits allow {most}")
    return length


def _avals(
    distinct: list[TensorSpec], index: Any, length: int, kind: str, limits: ProgramLimits
) -> tuple[TensorSpec, ...]:
    return tuple(distinct[index(i)] for i in range(_check_length(length, kind, limits)))


def _aval(aval: Any) -> TensorSpec:
    if aval.ShapeLength() > _MOST_DIMENSIONS:
        raise ProgramRefused(f"the program has an array of {aval.ShapeLength()} dimensions")
    sizes = [aval.Shape(i) for i in range(aval.ShapeLength())]
    for size in sizes:
        if not size.isdigit() or len(size) > _MOST_DIGITS:
            raise ProgramRefused(
                f"the program has a dimension {size[:40].decode(errors='replace')!r}; export it with fixed shapes"
            )
    dtype = _DTYPES.get(aval.Dtype())
    if dtype is None:
        raise ProgramRefused(
            f"the program takes or returns elements of kind {aval.Dtype()}; allowed: "
            f"{', '.join(DTYPE_OF_CONTAINER.values())}"
        )
    return TensorSpec(tuple(map(int, sizes)), dtype)


def _check_flat(root: Any, inputs: int, outputs: int) -> None:
    """Refuse a program unless its arguments are one tuple of arrays without keywords, and its results one tuple of arrays."""
    kinds = _schema.PyTreeDefKind
    arguments = root.InTree()
    flat = (
        arguments.Kind() == kinds.tuple
        and arguments.ChildrenLength() == 2
        and _is_row(arguments.Children(0), kinds.tuple, inputs)
        and _is_row(arguments.Children(1), kinds.dict, 0)
        and _is_row(root.OutTree(), kinds.tuple, outputs)
    )
    if not flat:
        raise ProgramRefused("the program's inputs or outputs are not flat; make it with export_program")


def _is_row(node: Any, kind: int, length: int) -> bool:
    if node.Kind() != kind or node.ChildrenLength() != length:
        return False
    leaf = _schema.PyTreeDefKind.leaf
    return all(
        node.Children(i).Kind() == leaf and node.Children(i).ChildrenLength() == 0 for i in range(length)
    )


@dataclass(frozen=True)
class VerifiedProgram:
    """A program that is allowed.

    Attributes:
        summary: Facts about it.
        container: Its container, with the module that was walked, as the inspector has written it anew: the bytes that came
            over the wire are not read again.
    """

    summary: ProgramSummary
    container: Container


def content_hash(artifact: bytes) -> str:
    """Return the name of an artifact: its SHA-256 in hexadecimal."""
    return hashlib.sha256(artifact).hexdigest()


def verify(
    artifact: bytes, limits: ProgramLimits | None = None, *, platform: str = "cpu", inspector: Inspector
) -> VerifiedProgram:
    """Walk a program, and refuse it if it is not allowed, or too large.

    Example:
        >>> with Inspector() as inspector:
        ...     verify(export_program(jnp.sin, 1.0).artifact, inspector=inspector).summary.inputs
        (TensorSpec(shape=(), dtype='float32'),)

    Args:
        artifact: The program, as `Program.artifact`.
        limits: Bounds on its size; the defaults of `ProgramLimits` if not given.
        platform: Where it is to run: `cpu`, `cuda`, `rocm` or `tpu`.
        inspector: Reads it in its process.

    Raises:
        ProgramRefused: The program is not allowed; the message says why.
    """
    limits = limits or ProgramLimits()
    container = read_container(artifact, limits)
    check_convention(container, platform)
    findings = inspector.walk(container.module, platform, limits)
    check_agreement(container, findings)
    summary = ProgramSummary(
        content_hash(artifact),
        container.inputs,
        container.outputs,
        findings.operations,
        findings.constant_bytes,
        findings.unfused_bytes,
        findings.custom_calls,
    )
    return VerifiedProgram(summary, replace(container, module=findings.module))


def check_convention(container: Container, platform: str) -> None:
    """Refuse a program for another platform, or for a JAX that calls modules in another way."""
    if container.platform != platform:
        raise ProgramRefused(
            f"the program is for {container.platform!r} and this server's device is {platform!r}; export it "
            f"with platform={platform!r}"
        )
    lowest = export.minimum_supported_calling_convention_version
    highest = export.maximum_supported_calling_convention_version
    if not lowest <= container.calling_convention <= highest:
        raise ProgramRefused(
            f"the program has calling convention {container.calling_convention}; this server's JAX knows "
            f"{lowest} to {highest}: export it with a nearer version of JAX"
        )


def check_agreement(container: Container, findings: Findings) -> None:
    """Refuse a program whose module takes or returns other arrays than its container says."""
    inputs = tuple(container.inputs[index] for index in container.used)
    if findings.inputs != inputs or findings.outputs != container.outputs:
        raise ProgramRefused(
            f"the program's container says {describe(inputs)} -> {describe(container.outputs)}, its module "
            f"{describe(findings.inputs)} -> {describe(findings.outputs)}; export it again"
        )
