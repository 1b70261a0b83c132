"""Strips a module to what it computes, so that equal programs are equal bytes.

Source locations hold file names and line numbers of the client; annotations for partitioning, for donation
and for pytrees mean nothing to a program for one device with flat inputs and outputs.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

# Attributes with a dialect in their name are annotations, except these.
_KEPT = frozenset({"mhlo.backend_config", "mhlo.num_partitions", "mhlo.num_replicas"})


def new_context() -> ir.Context:
    """A context that knows the dialects in which `jax.export` writes, and no others."""
    context = ir.Context()
    # One thread: a context's own pool costs more to start than one module takes to read.
    context.enable_multithreading(False)
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)
    return context


def operations(block: Any) -> Iterator[Any]:
    """Every operation in a block, in order, those inside regions right after the operation that has them."""
    pending = [iter(list(block))]
    while pending:
        for view in pending[-1]:
            operation = view.operation
            yield operation
            inner = [
                nested for region in operation.regions for nested_block in region for nested in nested_block
            ]
            if inner:
                pending.append(iter(inner))
                break
        else:
            pending.pop()


def strip(module: Any) -> None:
    """Removes locations, annotations and sharding constraints, in place."""
    nowhere = ir.Location.unknown(module.context)
    doomed = []
    for operation in [module.operation, *operations(module.body)]:
        operation.location = nowhere
        for region in operation.regions:
            for block in region:
                for argument in block.arguments:
                    argument.set_location(nowhere)
        for name in list(operation.attributes):
            if "." in name and name not in _KEPT:
                del operation.attributes[name]
        if operation.name == "func.func":
            for name in ("arg_attrs", "res_attrs"):
                if name in operation.attributes:
                    del operation.attributes[name]
        elif operation.name == "sdy.sharding_constraint":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            doomed.append(operation)
        elif operation.name == "sdy.mesh":
            doomed.append(operation)
    for operation in doomed:
        operation.erase()


def serialize(module: Any) -> bytes:
    """The module as a portable artifact, readable by any StableHLO of the last four weeks and newer."""
    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    version = stablehlo.get_version_from_compatibility_requirement(requirement)
    return bytes(stablehlo.serialize_portable_artifact(module, version, True))
