"""Which cuts stay when old ones are removed. Pure."""

from collections.abc import Iterable

from stratagem.errors import KeepError
from stratagem.keep.fields import shown


def kept(steps: Iterable[int], keep: int, keep_every: int | None = None) -> set[int]:
    """The steps whose cuts stay: the newest ones, and every so many-th for good.

    Args:
        steps: All steps that have a valid cut.
        keep: How many of the newest stay; at least 1, so that the newest always does.
        keep_every: Cuts at multiples of this step stay, however old; `None` for none.

    Example:
        >>> sorted(kept([100, 150, 200, 250, 300], keep=2, keep_every=200))
        [200, 250, 300]
    """
    if type(keep) is not int or keep < 1:
        raise KeepError(
            f"keep is {shown(keep)}; it must be a whole number of at least 1: the newest cut stays"
        )
    if keep_every is not None and (type(keep_every) is not int or keep_every < 1):
        raise KeepError(
            f"keep_every is {shown(keep_every)}; it must be a whole number of at least 1, or None to keep none "
            "for good"
        )
    ordered = sorted(steps)
    lasting = {step for step in ordered if keep_every is not None and step % keep_every == 0}
    return lasting | set(ordered[-keep:])
