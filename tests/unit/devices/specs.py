"""Generated device specs, for the tests of everything that takes one."""

from hypothesis import strategies as st

from stratagem.devices import DeviceSpec

JOBS = st.from_regex(r"[a-zA-Z][_a-zA-Z0-9]{0,8}", fullmatch=True)
INDICES = st.integers(min_value=0, max_value=10**6)
TYPES = st.sampled_from(["CPU", "GPU", "TPU", "cpu", "gpu", "tpu", "XLA_CPU", "CUSTOM"])


def any_specs() -> st.SearchStrategy[DeviceSpec]:
    """Specs of every kind, also those with an index and no type."""
    return st.builds(
        DeviceSpec,
        job=st.none() | JOBS,
        replica=st.none() | INDICES,
        task=st.none() | INDICES,
        device_type=st.none() | TYPES,
        device_index=st.none() | INDICES,
    )


def written_specs() -> st.SearchStrategy[DeviceSpec]:
    """Specs whose fields all show in their string."""
    return any_specs().filter(lambda spec: spec.device_type is not None or spec.device_index is None)
