"""Clusters for property tests: dense and sparse jobs, every address its own."""

from hypothesis import strategies as st

Jobs = dict[str, list[str] | dict[int, str]]

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,3})?(\.[a-z]{2,4})?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
ADDRESSES = st.builds(lambda host, port: f"{host}:{port}", HOSTS, st.integers(1, 65535))
JOB_NAMES = st.from_regex(r"[a-zA-Z][_a-zA-Z0-9]{0,8}", fullmatch=True)
INDICES = st.integers(0, 12)


@st.composite
def clusters(
    draw: st.DrawFn, names: st.SearchStrategy[str] = JOB_NAMES, smallest_job: int = 0, largest_job: int = 4
) -> Jobs:
    """A cluster as a user would write it; `smallest_job` 0 allows jobs without tasks."""
    sizes = draw(st.dictionaries(names, st.integers(smallest_job, largest_job), max_size=4))
    total = sum(sizes.values())
    addresses = iter(draw(st.lists(ADDRESSES, min_size=total, max_size=total, unique=True)))
    jobs: Jobs = {}
    for name, size in sizes.items():
        own = [next(addresses) for _ in range(size)]
        if draw(st.booleans()):
            jobs[name] = own
        else:
            indices = draw(st.lists(INDICES, min_size=size, max_size=size, unique=True))
            jobs[name] = dict(zip(indices, own, strict=True))
    return jobs
