"""Walk a StableHLO module: refuse operations that a server does not run, and estimate its cost.

This reads foreign bytes with MLIR's parser, which malformed bytes can crash: servers run it in a process of its own (see
`inspector`), clients on modules that they have just made themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs.allowed import CUSTOM_CALLS, OPERATIONS, wrong_signature
from stratagem.runtime.programs.canonical import new_context, operations, serialize, strip
from stratagem.runtime.programs.summary import DTYPE_OF_STABLEHLO, ProgramLimits, TensorSpec


@dataclass(frozen=True)
class Cost:
    """The cost of one block: operations executed, and peak bytes beside those of the caller's arguments."""

    operations: int
    peak_bytes: int


def block_cost(
    block: Any,
    bytes_of: Callable[[Any], int],
    call_cost: Callable[[Any], Cost],
    *,
    arguments: bool,
) -> tuple[Cost, set[Any]]:
    """Estimate the cost of a block as if every operation's result were kept in full until its last use.

    Args:
        block: The block.
        bytes_of: Returns the bytes of a value.
        call_cost: Returns the cost of the functions that an operation calls.
        arguments: Whether the block's own arguments are new memory (in a loop) or the caller's (in a call).

    Returns:
        The cost, and the values that the block uses but does not define.
    """
    operations = [view.operation for view in block]
    inner: list[Cost] = []
    last_use: dict[Any, int] = {}
    used: set[Any] = set()
    for position, operation in enumerate(operations):
        count, peak = 1, 0
        captured: set[Any] = set(operation.operands)
        for region in operation.regions:
            for nested in region:
                cost, outside = block_cost(nested, bytes_of, call_cost, arguments=True)
                count, peak = count + cost.operations, max(peak, cost.peak_bytes)
                captured |= outside
        called = call_cost(operation)
        inner.append(Cost(count + called.operations, max(peak, called.peak_bytes)))
        used |= captured
        for value in captured:
            last_use[value] = position

    freed: list[int] = [0] * len(operations)
    live = sum(bytes_of(argument) for argument in block.arguments) if arguments else 0
    if arguments:
        for argument in block.arguments:
            if argument in last_use:
                freed[last_use[argument]] += bytes_of(argument)
    highest = live
    for position, operation in enumerate(operations):
        results = 0
        for result in operation.results:
            size = bytes_of(result)
            results += size
            freed[last_use.get(result, position)] += size
        highest = max(highest, live + results + inner[position].peak_bytes)
        live += results - freed[position]
    defined = set(block.arguments) | {result for operation in operations for result in operation.results}
    return Cost(sum(cost.operations for cost in inner), highest), used - defined


_MOST_ELEMENTS = 1 << 56
_TYPED_INTERFACE = 4
_CONFIGURATIONS = ("mhlo.backend_config", "backend_config")
MAGIC = b"ML\xefR"
"""The first bytes of MLIR bytecode. Anything else would be read as text, which is not a portable artifact."""


@dataclass(frozen=True)
class Findings:
    """Facts about a module that is allowed, and the module written anew without annotations."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operations: int
    constant_bytes: int
    unfused_bytes: int
    custom_calls: tuple[str, ...]
    module: bytes


def walk(module: bytes, platform: str, limits: ProgramLimits | None) -> Findings:
    """Read a portable artifact, check every operation in it, and write it anew.

    Args:
        module: StableHLO portable artifact.
        platform: Platform that it is to run on, which decides the custom calls that are allowed.
        limits: Bounds on its size; `None` for none.

    Raises:
        ProgramRefused: It is not such an artifact, or contains something that is not allowed.
    """
    if not module.startswith(MAGIC):
        raise ProgramRefused("the program is not a StableHLO portable artifact; make it with export_program")
    context = new_context()
    try:
        parsed = stablehlo.deserialize_portable_artifact(context, module)
    except (ValueError, ir.MLIRError) as error:
        raise ProgramRefused(
            "the program's StableHLO cannot be read: it is damaged, or was made by a newer JAX than the "
            "server's; export it again, with the server's version of JAX"
        ) from error
    with context, ir.Location.unknown(context):
        try:
            strip(parsed)
            if not parsed.operation.verify():
                raise ProgramRefused("the program's StableHLO is not well-formed; export it again")
            return _Walk(parsed, platform, limits).findings()
        except (ir.MLIRError, ValueError) as error:
            raise ProgramRefused(f"the program's StableHLO is not well-formed: {error}") from error
        except RecursionError as error:
            raise ProgramRefused("the program nests its functions or regions too deeply") from error


class _Walk:
    """One walk over one module: every operation is checked, then what it costs is added up."""

    def __init__(self, module: Any, platform: str, limits: ProgramLimits | None) -> None:
        self._module = module
        self._platform = platform
        self._limits = limits
        self._specs: dict[Any, TensorSpec] = {}
        self._functions: dict[str, Any] = {}
        self._costs: dict[str, Cost | None] = {}
        self._constant_bytes = 0
        self._custom_calls: set[str] = set()

    def findings(self) -> Findings:
        for view in self._module.body:
            operation = view.operation
            if operation.name != "func.func":
                raise ProgramRefused(
                    f"the program has {operation.name} at its top, where only functions are allowed; programs are "
                    "for one device: leave out meshes and shard_map"
                )
            self._functions[ir.StringAttr(operation.attributes["sym_name"]).value] = operation
        main = self._functions.get("main")
        if main is None:
            raise ProgramRefused("the program has no function `main`; export it with export_program")
        for count, operation in enumerate(operations(self._module.body), start=1):
            self._bound("operations", count)
            self._check(operation)
        type_of_main = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        inputs = tuple(map(self._spec, type_of_main.inputs))
        outputs = tuple(map(self._spec, type_of_main.results))
        cost = self._function_cost("main")
        self._bound("operations", cost.operations)
        unfused = cost.peak_bytes + sum(spec.nbytes for spec in inputs)
        self._bound("unfused_bytes", unfused)
        return Findings(
            inputs,
            outputs,
            cost.operations,
            self._constant_bytes,
            unfused,
            tuple(sorted(self._custom_calls)),
            serialize(self._module),
        )

    def _check(self, operation: Any) -> None:
        name = operation.name
        if name not in OPERATIONS:
            raise ProgramRefused(
                f"the program uses the operation {name}, which a server does not run; allowed are StableHLO's "
                "computations on one device with fixed shapes: no callbacks, infeed, outfeed, send, recv, "
                "collectives or dynamic shapes"
            )
        for value in (*operation.operands, *operation.results):
            self._spec(value.type)
        for region in operation.regions:
            for block in region:
                for argument in block.arguments:
                    self._spec(argument.type)
        if name == "stablehlo.constant":
            self._check_constant(operation)
        elif name == "stablehlo.custom_call":
            self._check_custom_call(operation)
        elif name == "func.func" and len(operation.regions[0].blocks) != 1:
            raise ProgramRefused("the program has a function whose body is not one block")

    def _check_constant(self, operation: Any) -> None:
        spec = self._spec(operation.results[0].type)
        if spec.dtype.startswith("complex"):
            # MLIR's Python has no class for these, and raises an error when it meets one; so all count in full.
            repeated = False
        else:
            value = operation.attributes["value"]
            if not isinstance(value, ir.DenseElementsAttr):
                raise ProgramRefused("the program has a constant whose value is not written out in it")
            repeated = value.is_splat
        if not repeated:
            self._constant_bytes += spec.nbytes
            self._bound("constant_bytes", self._constant_bytes)

    def _check_custom_call(self, operation: Any) -> None:
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        allowed = CUSTOM_CALLS.get(self._platform, frozenset())
        if target not in allowed:
            raise ProgramRefused(
                f"the program has a custom call to {target!r}, which a server does not run on "
                f"{self._platform}; allowed there: {', '.join(sorted(allowed)) or 'none'}"
            )
        options = _kernel_options(operation, target)
        operands = [self._spec(value.type) for value in operation.operands]
        results = [self._spec(value.type) for value in operation.results]
        wrong = wrong_signature(target, options, operands, results)
        if wrong:
            raise ProgramRefused(f"the program's custom call to {target!r} is malformed: {wrong}")
        self._custom_calls.add(target)

    def _spec(self, kind: Any) -> TensorSpec:
        known = self._specs.get(kind)
        if known is not None:
            return known
        if not isinstance(kind, ir.RankedTensorType) or kind.encoding is not None:
            raise ProgramRefused(f"the program has a value of type {kind}; only plain tensors are allowed")
        if not kind.has_static_shape:
            raise ProgramRefused(
                f"the program has a value of type {kind}, whose shape is not fixed; export it with "
                "fixed shapes (no symbolic dimensions)"
            )
        dtype = DTYPE_OF_STABLEHLO.get(str(kind.element_type))
        if dtype is None:
            raise ProgramRefused(
                f"the program has a value of type {kind}; allowed elements: {', '.join(DTYPE_OF_STABLEHLO)}"
            )
        spec = TensorSpec(tuple(kind.shape), dtype)
        # XLA counts in 64 bits and aborts where a count does not fit; MLIR lets negative sizes through.
        if min(spec.shape, default=0) < 0 or prod(max(size, 1) for size in spec.shape) > _MOST_ELEMENTS:
            raise ProgramRefused(f"the program has a value of type {kind}, which no memory can hold")
        self._specs[kind] = spec
        return spec

    def _function_cost(self, name: str) -> Cost:
        if name in self._costs:
            known = self._costs[name]
            if known is None:
                raise ProgramRefused(
                    f"the program's function {name!r} calls itself; recursion is not allowed"
                )
            return known
        self._costs[name] = None
        body = self._functions[name].regions[0].blocks[0]
        cost, _ = block_cost(
            body, lambda value: self._spec(value.type).nbytes, self._call_cost, arguments=False
        )
        self._costs[name] = cost
        # Early: calls nested in calls multiply, and the numbers must not grow without end.
        self._bound("operations", cost.operations)
        return cost

    def _call_cost(self, operation: Any) -> Cost:
        names = []
        if operation.name == "func.call":
            names = [operation.attributes["callee"]]
        elif operation.name == "stablehlo.composite":
            names = [operation.attributes["decomposition"]]
        elif operation.name == "stablehlo.custom_call" and "called_computations" in operation.attributes:
            names = list(ir.ArrayAttr(operation.attributes["called_computations"]))
        count, peak = 0, 0
        for symbol in names:
            name = ir.FlatSymbolRefAttr(symbol).value
            if name not in self._functions:
                raise ProgramRefused(f"the program calls {name!r}, which it does not contain")
            cost = self._function_cost(name)
            count, peak = count + cost.operations, max(peak, cost.peak_bytes)
        return Cost(count, peak)

    def _bound(self, name: str, value: int) -> None:
        if self._limits is None:
            return
        limit = getattr(self._limits, name)
        if value > limit:
            problem = {
                "operations": f"runs through more than {limit} operations",
                "constant_bytes": f"carries more than {limit} bytes of constants: pass large arrays as inputs",
                "unfused_bytes": f"would take {value} bytes of memory if nothing were fused, above {limit}",
            }[name]
            raise ProgramRefused(f"the program {problem}; the server's ProgramLimits.{name} is {limit}")


def _kernel_options(operation: Any, target: str) -> Mapping[str, int]:
    """Return the integers among a kernel's attributes; kernels of the typed interface have a dictionary of them."""
    attributes = operation.attributes
    version = ir.IntegerAttr(attributes["api_version"]).value if "api_version" in attributes else 1
    configurations = [attributes[name] for name in _CONFIGURATIONS if name in attributes]
    options: dict[str, int] = {}
    for configuration in configurations:
        if isinstance(configuration, ir.DictAttr):
            pairs = [(item.name, item.attr) for item in cast(Any, configuration)]
            options = {key: value.value for key, value in pairs if isinstance(value, ir.IntegerAttr)}
        elif target.endswith("_ffi"):
            raise ProgramRefused(f"the program's custom call to {target!r} has no dictionary of attributes")
    # With two configurations, one would be checked here and the other used there.
    typed = version == _TYPED_INTERFACE or (version == 1 and "mhlo.backend_config" in attributes)
    if len(configurations) > 1 or (target.endswith("_ffi") and not typed):
        raise ProgramRefused(
            f"the program's custom call to {target!r} is not made through the typed interface"
        )
    return options
