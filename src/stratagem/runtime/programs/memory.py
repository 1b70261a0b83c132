"""Estimates the peak memory of a function as if every operation's result were kept in full until last used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What one block costs: operations run through, and bytes beside those it was handed."""

    operations: int
    peak_bytes: int


def block_cost(
    block: Any,
    bytes_of: Callable[[Any], int],
    call_cost: Callable[[Any], Cost],
    *,
    arguments: bool,
) -> tuple[Cost, set[Any]]:
    """Scans a block once, in order, with what is live at each operation.

    Args:
        block: The block.
        bytes_of: Bytes of a value.
        call_cost: What the functions cost that an operation calls.
        arguments: Whether the block's own arguments are new memory (in a loop) or the caller's (in a call).

    Returns:
        The cost, and the values that are used here but defined outside.
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
