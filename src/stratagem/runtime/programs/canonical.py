"""Strip a module to its computation, so that equal programs are equal bytes.

Source locations hold file names and line numbers of the client. Annotations for partitioning, for donation and for pytrees
mean nothing to a program for one device with flat inputs and outputs. A composite is a call with a name under which a
compiler may know a better way; it becomes the call.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo

# Attributes with a dialect in their name are annotations, except these.
_ESSENTIAL = {
    "builtin.module": frozenset({"mhlo.num_partitions", "mhlo.num_replicas"}),
    "stablehlo.custom_call": frozenset({"mhlo.backend_config"}),
}


def new_context() -> ir.Context:
    """Return a context that knows the dialects in which `jax.export` writes, and no others."""
    context = ir.Context()
    # One thread: starting a context's own pool takes longer than reading one module.
    context.enable_multithreading(False)
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)
    return context


def operations(block: Any) -> Iterator[Any]:
    """Yield every operation in a block, in order, those inside regions right after the operation that has them."""
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
    """Remove locations, annotations, composites and sharding constraints, in place."""
    nowhere = ir.Location.unknown(module.context)
    obsolete, meshes, others = [], [], 0
    for operation in [module.operation, *operations(module.body)]:
        name = operation.name
        operation.location = nowhere
        for region in operation.regions:
            for block in region:
                for argument in block.arguments:
                    argument.set_location(nowhere)
        essential = _ESSENTIAL.get(name, frozenset())
        for attribute in list(operation.attributes):
            if "." in attribute and attribute not in essential:
                del operation.attributes[attribute]
        if name == "func.func":
            for attribute in ("arg_attrs", "res_attrs"):
                if attribute in operation.attributes:
                    del operation.attributes[attribute]
        elif name == "stablehlo.composite":
            if not _is_top_k(operation):
                _replace_by_call(operation, nowhere)
                obsolete.append(operation)
        elif name == "sdy.sharding_constraint":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            obsolete.append(operation)
        elif name == "sdy.mesh":
            meshes.append(operation)
        elif name.startswith("sdy."):
            others += 1
    # Other operations for partitioning will be refused by their own names; until then they need their mesh.
    for operation in obsolete if others else obsolete + meshes:
        operation.erase()


def _is_top_k(operation: Any) -> bool:
    """Return whether a composite is a top-k exactly as XLA expects it, which has a faster one than a sort.

    XLA crashes on some composites that are not exactly so.
    """
    if "composite_attributes" not in operation.attributes:
        return False
    options = {item.name: item.attr for item in operation.attributes["composite_attributes"]}
    k = options.get("k")
    if (
        ir.StringAttr(operation.attributes["name"]).value != "chlo.top_k"
        or set(options) - {"k", "largest"}
        or not isinstance(k, ir.IntegerAttr)
        or str(k.type) != "i64"
        or not isinstance(options.get("largest", ir.BoolAttr.get(True)), ir.BoolAttr)
        or len(operation.operands) != 1
        or len(operation.results) != 2
    ):
        return False
    operand, values, indices = (value.type for value in (*operation.operands, *operation.results))
    if (
        not all(isinstance(kind, ir.RankedTensorType) for kind in (operand, values, indices))
        or operand.rank == 0
    ):
        return False
    shape = [*list(operand.shape)[:-1], k.value]
    return (
        0 <= k.value <= operand.shape[-1]
        and list(values.shape) == list(indices.shape) == shape
        and values.element_type == operand.element_type
        and str(indices.element_type) == "i32"
    )


def _replace_by_call(composite: Any, location: Any) -> None:
    callee = ir.FlatSymbolRefAttr(composite.attributes["decomposition"])
    results = [result.type for result in composite.results]
    with location, ir.InsertionPoint(composite):
        call = func.CallOp(results, callee, list(composite.operands))
    for result, replacement in zip(composite.results, call.results, strict=True):
        result.replace_all_uses_with(replacement)


def serialize(module: Any) -> bytes:
    """Return the module as a portable artifact, readable by any StableHLO of the last four weeks and newer."""
    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    version = stablehlo.get_version_from_compatibility_requirement(requirement)
    return bytes(stablehlo.serialize_portable_artifact(module, version, True))
