"""Keras layers that TensorFlow computes, such as `Hashing`: they run on the host before each step; XLA compiles the rest.

On JAX, Keras by itself cannot train a model with such layers: they take strings and concrete arrays, and while a step is
traced there are neither.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras.src import tree
from keras.src.models import Functional
from keras.src.utils.module_utils import tensorflow

from stratagem.errors import StrategyError

_KINDS = (
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
)
_INSTEAD = (
    "such layers are computed on the host before each step, from Inputs of the model or from other such layers: do what comes "
    "before them where the batches are made, and put them first in a functional or Sequential model"
)
_ATTRIBUTE = "_stratagem_host_layers"
"""The attribute of a model that has its `HostLayers`."""


class HostBatch(NamedTuple):
    """A batch with the outputs of such layers.

    Attributes:
        data: The user's batch, with zeros for inputs that only such layers read.
        outputs: For each layer by name, its outputs, in the order of its calls in the model.
    """

    data: Any
    outputs: dict[str, list[Any]]


class HostLayers:
    """The layers of a model that TensorFlow computes.

    Attributes:
        functional: The graph of the model.
        layers: These layers.

    Raises:
        StrategyError: A layer takes a value that is computed in the step.
    """

    def __init__(self, model: Any, functional: Any, layers: Sequence[Any]) -> None:
        self._name = model.name
        self.functional = functional
        self.layers = layers
        by_depth = functional._nodes_by_depth
        nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
        self._nodes = [node for node in nodes if node.operation in layers]
        self._in_order = list({id(node.operation): node.operation for node in self._nodes}.values())
        if missing := [layer for layer in layers if layer not in self._in_order]:
            raise _refusal(
                missing[0], "is not in the graph of the model itself, but within another layer or model"
            )
        own = {id(output) for node in self._nodes for output in node.outputs}
        places = {id(each): place for place, each in enumerate(functional.inputs)}
        read: dict[int, None] = {}
        for node in self._nodes:
            for tensor in node.input_tensors:
                if id(tensor) in places:
                    read[places[id(tensor)]] = None
                elif id(tensor) not in own:
                    source = tensor._keras_history.operation
                    raise _refusal(
                        node.operation, f"takes what {type(source).__name__} {source.name!r} gives"
                    )
        self._read = list(read)
        others = {id(each) for node in nodes if node not in self._nodes for each in node.input_tensors}
        self._read_only_here = [place for place in self._read if id(functional.inputs[place]) not in others]
        self._compiled: tuple[list[Any], Callable[..., Any]] | None = None

    def __call__(self, batch: Any) -> HostBatch:
        """Return a batch of the host with the outputs of the layers, which are computed unless it has them."""
        if isinstance(batch, HostBatch):
            return batch
        is_bare = not isinstance(batch, tuple | list)
        x = batch if is_bare else batch[0]
        leaves = tree.flatten(x)
        order = self._order(x)
        inputs = [self._with_rank(np.asarray(leaves[order[place]]), place) for place in self._read]
        outputs: dict[str, list[Any]] = {layer.name: [] for layer in self._in_order}
        for node, output in zip(self._nodes, self._function()(*inputs), strict=True):
            outputs[node.operation.name].append(output.numpy())
        for place in self._read_only_here:
            leaves[order[place]] = np.zeros(np.shape(leaves[order[place]]), np.int8)
        x = tree.pack_sequence_as(x, leaves)
        return HostBatch(x if is_bare else (x, *batch[1:]), outputs)

    @contextmanager
    def replayed(self, batch: HostBatch) -> Iterator[Any]:
        """Have the layers return a batch's outputs instead of computing them, while the block is traced.

        Yields:
            The user's batch.
        """
        x = batch.data[0] if isinstance(batch.data, tuple) else batch.data
        leaves, order = tree.flatten(x), self._order(x)
        with self._replaying(batch.outputs, {place: leaves[order[place]] for place in self._read}):
            yield batch.data

    @contextmanager
    def building(self) -> Iterator[Callable[[Any], Any]]:
        """Have the layers return arrays of the right shapes, while the model is built in the block.

        Yields:
            A function that makes of a batch one that the model can be built with.
        """
        outputs: dict[str, list[Any]] = {}

        def for_building(batch: Any) -> Any:
            computed = self(batch)
            outputs.update(jax.tree.map(_zeros, computed.outputs))
            return computed.data

        with self._replaying(outputs, {}):
            yield for_building

    def _function(self) -> Callable[..., Any]:
        """Return the function that computes the layers; another one when a layer has another vocabulary."""
        tables = [getattr(layer, "lookup_table", None) for layer in self._in_order]
        known = self._compiled
        if known is None or any(old is not new for old, new in zip(known[0], tables, strict=True)):

            def outputs(*inputs: Any) -> list[Any]:
                read = (self.functional.inputs[place] for place in self._read)
                values = {id(tensor): value for tensor, value in zip(read, inputs, strict=True)}
                for node in self._nodes:
                    args, kwargs = node.arguments.fill_in(values)
                    layer = node.operation
                    values[id(node.outputs[0])] = type(layer).call(layer, *args, **kwargs)
                return [values[id(node.outputs[0])] for node in self._nodes]

            # In a TensorFlow graph their outputs are TensorFlow's arrays, which keep all bits of each id.
            self._compiled = known = (
                tables,
                tensorflow.function(outputs, autograph=False, reduce_retracing=True),
            )
        return known[1]

    def _order(self, x: Any) -> list[int]:
        """Return for each input of the model the number of the array of `x` that it is."""
        numbers = tree.pack_sequence_as(x, list(range(len(tree.flatten(x)))))
        if isinstance(x, dict) and not isinstance(self.functional._inputs_struct, dict):
            numbers = [numbers[each.name] for each in self.functional.inputs if each.name in numbers]
        order: list[int] = tree.flatten(numbers)
        if len(order) != len(self.functional.inputs):
            names = [each.name for each in self.functional.inputs]
            raise StrategyError(
                f"model {self._name!r} has the inputs {names}, and was given {len(order)} of them"
            )
        return order

    def _with_rank(self, array: Any, place: int) -> Any:
        """Return an array in the form that the layers take: a column where Keras makes it one, and 64-bit integers."""
        shape = self.functional.inputs[place].shape
        if array.ndim == len(shape) - 1 and shape[-1] == 1:
            array = array[..., np.newaxis]
        elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        return array.astype(np.int64) if array.dtype.kind in "iu" else array

    @contextmanager
    def _replaying(self, outputs: Mapping[str, list[Any]], inputs: Mapping[int, Any]) -> Iterator[None]:
        """Have the layers return these outputs in the block, whenever the model is called on these inputs."""
        left: dict[str, Iterator[Any]] = {}

        def convert(flat: Sequence[Any]) -> list[Any]:
            for place, array in inputs.items():
                if flat[place] is not array:
                    raise StrategyError(
                        f"model {self._name!r} was called on something else than the x of its batch, and its layers "
                        f"{list(outputs)} are computed of that before the step: call the model on x as train_step is given it"
                    )
            left.update({name: iter(each) for name, each in outputs.items()})
            return [
                each
                if each is None or place in self._read_only_here
                else keras.ops.convert_to_tensor(each, tensor.dtype, tensor.sparse)
                for place, (each, tensor) in enumerate(zip(flat, self.functional.inputs, strict=True))
            ]

        overridden = [(self.functional, "_convert_inputs_to_tensors", convert)]
        overridden += [(layer, "call", _next_of(left, layer)) for layer in self._in_order]
        # Without Keras's own __setattr__, which would look for layers and variables.
        for each, name, override in overridden:
            object.__setattr__(each, name, override)
        try:
            yield
        finally:
            for each, name, _ in overridden:
                object.__delattr__(each, name)


def with_strings(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of a method with arrays of strings as TensorFlow's: Keras takes no others."""
    if not _layers(model):
        return arguments

    def as_tensor(leaf: Any) -> Any:
        is_text = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSTU"
        return tensorflow.convert_to_tensor(leaf.astype(object)) if is_text else leaf

    data = {name: arguments[name] for name in ("x", "validation_data") if name in arguments}
    return {**arguments, **{name: tree.map_structure(as_tensor, value) for name, value in data.items()}}


def host_layers_of(model: Any) -> HostLayers | None:
    """Return the layers of a model that TensorFlow computes; `None` if it has none.

    A model has one such object until its graph changes, so training and evaluation share what TensorFlow has traced.

    Raises:
        StrategyError: The layers are where they cannot be computed before the step.
    """
    layers = _layers(model)
    if not layers:
        return None
    functional = model if isinstance(model, Functional) else None
    if isinstance(model, keras.Sequential):
        functional = model._functional
        if functional is None:
            raise _refusal(
                layers[0], "is in a Sequential model that does not begin with a keras.Input(shape, dtype=...)"
            )
    if functional is None:
        raise _refusal(layers[0], f"is in a {type(model).__name__}, which has a call of its own and no graph")
    known: HostLayers | None = vars(model).get(_ATTRIBUTE)
    if known is None or known.functional is not functional or known.layers != layers:
        known = HostLayers(model, functional, layers)
        object.__setattr__(model, _ATTRIBUTE, known)
    return known


def _layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, _KINDS)]


def _refusal(layer: Any, reason: str) -> StrategyError:
    return StrategyError(f"{type(layer).__name__} {layer.name!r} {reason}; {_INSTEAD}")


def _zeros(array: Any) -> jax.Array:
    return jnp.zeros(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _next_of(left: Mapping[str, Iterator[Any]], layer: Any) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        output = next(left.get(layer.name, iter(())), None)
        if output is None:
            raise _refusal(layer, "is called elsewhere than in the graph of the model")
        return output

    return call
