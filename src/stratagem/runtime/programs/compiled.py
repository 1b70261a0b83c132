"""Programs compiled for one device."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import SingleDeviceSharding

from stratagem.errors import ProgramRefused, RemoteCallError
from stratagem.runtime.programs.summary import ProgramSummary, TensorSpec
from stratagem.runtime.programs.verification import Container, VerifiedProgram

_HOST = np.ndarray, np.generic


class CompiledProgram:
    """Runs a program on flat arrays.

    Calls may come from several threads. On a CPU the following is safe to do with the arrays (measured):

    - NumPy inputs that start at a multiple of 64 bytes are read in place, not copied, and the call returns before it has read
      them. Do not write to them until the results are ready: pass `wait=True`, or call `jax.block_until_ready` on the results
      first.
    - Results never share memory with NumPy inputs, even if the program returns an input unchanged or the input is donated.
    - Results share memory with a jax array only if it was donated, and then that array is deleted. A donated array that still
      shares memory with NumPy (made from it without a copy, or looked at with `np.asarray`) is copied instead, and what NumPy
      sees does not change.
    - The same array must not be passed twice in one call if it is donated.

    Attributes:
        summary: Facts about the program.
        device: Where it runs.
        donated: Indices of the inputs whose memory becomes a result's.
        memory_bytes: The memory that XLA reports for a call: arguments, results and temporaries.
        traceable: The program as a function that JAX can trace, for other programs to be made of.
    """

    def __init__(
        self,
        compiled: Any,
        traceable: Callable[..., tuple[jax.Array, ...]],
        summary: ProgramSummary,
        device: jax.Device,
        donated: tuple[int, ...],
        memory_bytes: int,
    ) -> None:
        self.summary = summary
        self.device = device
        self.donated = donated
        self.memory_bytes = memory_bytes
        self.traceable = traceable
        self._compiled = compiled
        self._expected = [(spec.shape, np.dtype(spec.dtype)) for spec in summary.inputs]
        self._wide = any(_is_wide(spec) for spec in (*summary.inputs, *summary.outputs))
        self._narrow = [index for index, spec in enumerate(summary.inputs) if _is_narrow(spec)]
        self._calls = 0
        self._count_lock = threading.Lock()

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._calls

    def __call__(self, arrays: Sequence[Any], *, wait: bool = False) -> list[jax.Array]:
        """Run the program.

        Args:
            arrays: NumPy or jax arrays, one per input, of exactly its shape and dtype.
            wait: Return only when the results are ready and the inputs are no longer read.

        Raises:
            ProgramRefused: The program takes arrays of another number, shape or dtype.
            RemoteCallError: It failed while it ran. Without `wait`, JAX may say so only when a result is read.
        """
        expected = self._expected
        if len(arrays) != len(expected):
            raise ProgramRefused(f"the program takes {len(expected)} arrays and is called with {len(arrays)}")
        for array, (shape, dtype) in zip(arrays, expected, strict=True):
            # JAX itself refuses arrays of its own that do not fit; others it might convert.
            if isinstance(array, _HOST) and (array.shape != shape or array.dtype != dtype):
                self._refuse(arrays)
        if self._narrow:
            # JAX gives its own arrays of less than a byte another layout than compiled calls ask for.
            arrays = [
                np.asarray(array) if index in self._narrow else array for index, array in enumerate(arrays)
            ]
        try:
            if self._wide:
                # Without this, JAX narrows 64-bit NumPy arrays on entry unless the whole process has x64 on.
                with jax.enable_x64(True):
                    results = self._compiled(*arrays)
            else:
                results = self._compiled(*arrays)
            if wait:
                for result in results:
                    result.block_until_ready()
        except TypeError:
            self._refuse(arrays)
            raise
        except jax.errors.JaxRuntimeError as error:
            raise RemoteCallError(f"the program failed while it ran: {error}") from error
        with self._count_lock:
            self._calls += 1
        return list(results)

    def derive(
        self,
        traceable: Callable[..., tuple[jax.Array, ...]],
        inputs: Sequence[TensorSpec],
        donated: tuple[int, ...],
    ) -> "CompiledProgram":
        """Return a program for the same device with other inputs and the same results.

        Args:
            traceable: The function it runs, which calls this one's `traceable`.
            inputs: Its inputs.
            donated: Indices of the inputs whose memory becomes a result's.
        """
        compiled = _compile(traceable, inputs, donated, self.device)
        summary = replace(self.summary, inputs=tuple(inputs))
        return CompiledProgram(compiled, traceable, summary, self.device, donated, _memory(compiled, summary))

    def _refuse(self, arrays: Sequence[Any]) -> None:
        for position, (array, spec) in enumerate(zip(arrays, self.summary.inputs, strict=True)):
            actual = TensorSpec(tuple(array.shape), str(array.dtype))
            if actual != spec:
                raise ProgramRefused(
                    f"the program takes {spec} as input {position} and is called with {actual}"
                )


def compile_program(
    program: VerifiedProgram, device: jax.Device, donate: Sequence[int], memory_limit: int
) -> CompiledProgram:
    """Compile a program for a device, ahead of time.

    Args:
        program: A verified program.
        device: Where it is to run.
        donate: Indices of inputs whose memory may become a result's; those that fit no result are ignored.
        memory_limit: Most bytes that a call may take.

    Raises:
        ProgramRefused: XLA cannot compile it, or it takes more memory than it may.
    """
    inputs = program.summary.inputs
    wrong = [index for index in donate if not 0 <= index < len(inputs)]
    if wrong:
        raise ProgramRefused(f"cannot donate inputs {wrong}: the program has {len(inputs)} inputs")
    donated = _usable(donate, inputs, program.summary.outputs)
    traceable = _to_exported(program.container).call
    compiled = _compile(traceable, inputs, donated, device)
    memory_bytes = _memory(compiled, program.summary)
    if memory_bytes > memory_limit:
        raise ProgramRefused(
            f"a call of the program takes {memory_bytes} bytes; the server's ProgramLimits.memory_bytes is "
            f"{memory_limit}"
        )
    return CompiledProgram(compiled, traceable, program.summary, device, donated, memory_bytes)


def _compile(
    traceable: Callable[..., Any], inputs: Sequence[TensorSpec], donated: tuple[int, ...], device: jax.Device
) -> Any:
    sharding = SingleDeviceSharding(device)
    try:
        with jax.enable_x64(True):
            shapes = [
                jax.ShapeDtypeStruct(spec.shape, np.dtype(spec.dtype), sharding=sharding) for spec in inputs
            ]
            jitted = jax.jit(traceable, donate_argnums=donated, out_shardings=sharding)
            return jitted.lower(*shapes).compile()
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, TypeError) as error:
        raise ProgramRefused(f"the program does not compile on {device}: {error}") from error


def _usable(
    donate: Sequence[int], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[int, ...]:
    """Return the inputs among `donate` whose memory some result can take; JAX would warn of the others."""
    free = list(outputs)
    usable = []
    for index in sorted(set(donate)):
        if inputs[index] in free:
            free.remove(inputs[index])
            usable.append(index)
    return tuple(usable)


def _to_exported(container: Container) -> export.Exported:
    """Return what `jax.export.deserialize` would, from fields that were checked one by one."""

    def avals(specs: Sequence[TensorSpec]) -> tuple[Any, ...]:
        return tuple(jax.core.ShapedArray(spec.shape, np.dtype(spec.dtype)) for spec in specs)

    no_inputs: tuple[None, ...] = (None,) * len(container.inputs)
    no_outputs: tuple[None, ...] = (None,) * len(container.outputs)
    return export.Exported(
        fun_name="program",
        in_tree=jax.tree.structure((tuple(range(len(container.inputs))), {})),
        in_avals=avals(container.inputs),
        out_tree=jax.tree.structure(tuple(range(len(container.outputs)))),
        out_avals=avals(container.outputs),
        _has_named_shardings=True,
        _in_named_shardings=no_inputs,
        _out_named_shardings=no_outputs,
        in_shardings_hlo=no_inputs,
        out_shardings_hlo=no_outputs,
        nr_devices=1,
        platforms=(container.platform,),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=container.module,
        calling_convention_version=container.calling_convention,
        module_kept_var_idx=container.used,
        uses_global_constants=False,
        _get_vjp=None,
    )


def _memory(compiled: Any, summary: ProgramSummary) -> int:
    """Return the bytes that XLA reports for a call, or, on a platform where it reports none, those of inputs and outputs."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return sum(spec.nbytes for spec in (*summary.inputs, *summary.outputs))
    return int(
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )


def _is_wide(spec: TensorSpec) -> bool:
    return spec.dtype in {"int64", "uint64", "float64", "complex128"}


def _is_narrow(spec: TensorSpec) -> bool:
    return spec.dtype in {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn"}
