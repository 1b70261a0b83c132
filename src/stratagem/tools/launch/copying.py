"""How the C library of a task copies large arrays, which has to be said before the task starts."""

from collections.abc import Mapping

TUNABLES = "GLIBC_TUNABLES"
_PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold"
_FROM_BYTES = 1 << 20


def copying_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What to set beside `environ` so that copies of a megabyte or more go past the processor's caches.

    What a task copies is mostly for another task: gradients and parameters, into shared memory. By itself, glibc writes
    whatever is smaller than the caches into them, and so drives out what the task computes with next. Other C libraries,
    and processors other than x86, take no notice.

    Example:
        >>> copying_environment({})
        {'GLIBC_TUNABLES': 'glibc.cpu.x86_non_temporal_threshold=0x100000'}
        >>> copying_environment({"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x400000"})
        {}
    """
    known = environ.get(TUNABLES, "")
    if _PAST_CACHES in known:
        return {}
    return {TUNABLES: ":".join(filter(None, (known, f"{_PAST_CACHES}={_FROM_BYTES:#x}")))}
