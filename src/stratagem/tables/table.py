"""`Table`: an embedding that is kept and trained row by row, as the user describes it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError

Initializer = Callable[..., Any]
"""`initializer(key, (dim,), dtype)`: makes the first value of one row, as JAX's initializers do."""


def uniform(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Draw values between -0.05 and 0.05."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows that are looked up by id. Only the rows of a batch travel, and only those are updated.

    Args:
        name: Its name in loss functions, checkpoints and messages.
        dim: How many numbers a row has.
        rows: Ids are 0 to `rows` - 1; `None`: any 64-bit integer, and a row appears when its id is first trained.
        optimizer: An optax optimizer that updates every row by itself; by default that of `strategy.init`.
        initializer: Makes the first value of a row, as `initializer(key, (dim,), dtype)`; by default uniform between
            -0.05 and 0.05. The value depends on seed, name and id alone, whoever asks first.
        seed: First values are drawn from it, the name and the id.
        dtype: The type of its numbers.
        admit_after: How often an id has to be seen in training before it is trained itself.
        expire_steps: After how many global steps without being trained a row goes; `None`: never.

    Raises:
        StrategyError: An argument is not what it should be.

    Example:
        >>> Table("users", dim=16).name
        'users'
    """

    name: str
    dim: int
    rows: int | None = None
    optimizer: Any = None
    initializer: Initializer | None = None
    seed: int = 0
    dtype: str = "float32"
    admit_after: int = 0
    expire_steps: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise StrategyError(f"a table's name is {self.name!r}; give a text that is not empty")
        self._check_whole("dim", self.dim, 1)
        self._check_whole("admit_after", self.admit_after, 0)
        for name in ("rows", "expire_steps"):
            if getattr(self, name) is not None:
                self._check_whole(name, getattr(self, name), 1)
        if self.initializer is not None and not callable(self.initializer):
            raise self._wrong("initializer", "a function initializer(key, (dim,), dtype), or None")
        try:
            is_floating = jnp.issubdtype(np.dtype(self.dtype), np.floating)
        except TypeError:
            is_floating = False
        if not is_floating:
            raise self._wrong("dtype", "a floating type such as 'float32' or 'bfloat16'")

    def _check_whole(self, name: str, value: Any, least: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")

    def _wrong(self, name: str, allowed: str) -> StrategyError:
        return StrategyError(f"table {self.name!r} has {name}={getattr(self, name)!r}; give {allowed}")

    @property
    def key(self) -> int:
        """63 bits of seed and name, from which, with their ids, the first values of rows are drawn."""
        digest = hashlib.sha256(f"{self.seed} {self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


def check_tables(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return the tables of a model, checked.

    Raises:
        StrategyError: One of them is not a table, or two have the same name.
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Table) for table in tables):
        raise StrategyError(f"tables is {tables!r:.80}; give a list of tables: tables=[sg.Table(...)]")
    names = [table.name for table in tables]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StrategyError(f"two tables are called {twice!r}: give each a name of its own")
    return tuple(tables)
