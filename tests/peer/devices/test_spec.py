"""DeviceSpec reads, writes and merges as tf.DeviceSpec does, but for the differences that are named here."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.devices import DeviceSpec
from stratagem.errors import DeviceSpecError

tf = pytest.importorskip("tensorflow")

PARTS = st.sampled_from(
    [
        *["", "job", "job:", "job:ps", "job:worker", "job:a:b", "job:*", "job:a-b", "jobs:a", ":", ":0", " "],
        *["replica:0", "replica:1", "replica:x", "replica:", "replica:*", "task:0", "task:17", "task:-1"],
        *["task:+1", "task:1_0", "task:one", "task: 1", "task:*", "task:0:0", "replica", "task"],
        *[
            "cpu",
            "CPU",
            "cpu:0",
            "Cpu:1",
            "gpu",
            "gpu:0",
            "GPU:3",
            "gpu:*",
            "gpu:x",
            "gpu:",
            "gpu:-1",
            "gpu:0:0",
        ],
        *["tpu:0", "TPU:*", "tpu", "custom:0", "EPU:1", "npu:0", "device", "device:GPU", "device:GPU:0"],
        *["device:CPU:*", "device:gpu:1", "device:tpu:1", "device:Gpu:0", "device:XLA_CPU:0", "device:GPU:x"],
        *["device::0", "device:GPU:", "device:GPU:-1", "device:*:0", "device:GPU:0:0", "DEVICE:GPU:0"],
    ]
)
TEXTS = st.lists(PARTS, max_size=4).map("/".join) | st.lists(PARTS, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)

# What TensorFlow takes and we refuse, since it can only be a mistake:
REFUSED_HERE = [
    r"(^|/)job:(\*|[^/]*-[^/]*)?(/|$)",  # a job without a name, or with one that no cluster may have
    r":[^/]*[-+_ ][^/]*(/|$)",  # an index with a sign, a blank or an underscore, which int() takes
    r"(^|/):",  # a part without a name, which TensorFlow skips
    r"(^|/)device:(|\*):",  # a device without a type
    r"(^|/)(job|replica|task):.*/\2:",  # a part given twice: the last one wins in TensorFlow
]


def theirs(text: str) -> str | None:
    try:
        return str(tf.DeviceSpec.from_string(text).to_string())
    except ValueError:
        return None


def ours(text: str) -> str | None:
    try:
        return DeviceSpec.from_string(text).to_string()
    except DeviceSpecError:
        return None


def with_capital_types(text: str | None) -> str | None:
    """TensorFlow capitalises `/device:gpu:0` but not `/device:tpu:0`; we capitalise every type."""
    return (
        None
        if text is None
        else re.sub(r"/device:\w+:", lambda match: match[0].upper().replace("DEVICE", "device"), text)
    )


@given(TEXTS)
def test_same_strings_are_read_to_the_same_end(text: str) -> None:
    if theirs(text) is not None and any(re.search(pattern, text) for pattern in REFUSED_HERE):
        if ours(text) is not None:
            assert ours(text) == with_capital_types(theirs(text))
        return
    assert ours(text) == with_capital_types(theirs(text))


@pytest.mark.parametrize(
    "text",
    [
        "/job:a/job:b",
        "/task:0/task:1",
        "/job:",
        "/job:a-b",
        "/task:-1",
        "/task:1_0",
        "/gpu:-1",
        "/:0",
        "/device::0",
    ],
)
def test_deliberate_differences(text: str) -> None:
    assert theirs(text) is not None and ours(text) is None


@pytest.mark.parametrize(
    "text", ["/gpu:0/cpu:0", "/job:a:b", "/device:GPU", "/task:*", "/npu:0", "/gpu:x", "worker"]
)
def test_refused_by_both(text: str) -> None:
    assert theirs(text) is None and ours(text) is None


FIELDS = st.fixed_dictionaries(
    {
        "job": st.none() | st.sampled_from(["ps", "worker", "localhost"]),
        "replica": st.none() | st.integers(min_value=0, max_value=9),
        "task": st.none() | st.integers(min_value=0, max_value=99),
        "device_type": st.none() | st.sampled_from(["CPU", "GPU", "TPU", "cpu", "gpu"]),
        "device_index": st.none() | st.integers(min_value=0, max_value=9),
    }
)


@given(FIELDS, FIELDS)
def test_same_strings_and_same_merging(outer: dict[str, object], inner: dict[str, object]) -> None:
    mine, other = DeviceSpec(**outer), DeviceSpec(**inner)  # type: ignore[arg-type]
    their_mine, their_other = tf.DeviceSpec(**outer), tf.DeviceSpec(**inner)
    assert mine.to_string() == their_mine.to_string()
    assert mine.make_merged_spec(other).to_string() == their_mine.make_merged_spec(their_other).to_string()
    assert mine.replace(**inner).to_string() == their_mine.replace(**inner).to_string()
    # TensorFlow compares strings, we compare fields: they differ where an index has no type to show with.
    if (outer["device_type"] is None) <= (outer["device_index"] is None):
        assert (mine == DeviceSpec.from_string(mine.to_string())) is True
