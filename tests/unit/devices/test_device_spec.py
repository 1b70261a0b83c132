"""DeviceSpec: the grammar, the canonical string, merging."""

import pytest
from hypothesis import given

from stratagem.devices import DeviceSpec
from stratagem.errors import DeviceError, DeviceSpecError
from unit.devices.specs import any_specs, written_specs

GOOD = {
    "": DeviceSpec(),
    "/": DeviceSpec(),
    "/gpu:0": DeviceSpec(device_type="GPU", device_index=0),
    "/GPU:0": DeviceSpec(device_type="GPU", device_index=0),
    "gpu:1": DeviceSpec(device_type="GPU", device_index=1),
    "/Gpu:12": DeviceSpec(device_type="GPU", device_index=12),
    "/device:GPU:0": DeviceSpec(device_type="GPU", device_index=0),
    "/device:gpu:0": DeviceSpec(device_type="GPU", device_index=0),
    "/device:tpu:3": DeviceSpec(device_type="TPU", device_index=3),
    "/tpu:3": DeviceSpec(device_type="TPU", device_index=3),
    "/cpu:*": DeviceSpec(device_type="CPU"),
    "/cpu": DeviceSpec(device_type="CPU"),
    "/device:CPU:*": DeviceSpec(device_type="CPU"),
    "/device:XLA_CPU:0": DeviceSpec(device_type="XLA_CPU", device_index=0),
    "/job:localhost": DeviceSpec(job="localhost"),
    "/job:x/replica:0/task:1/cpu:*": DeviceSpec("x", 0, 1, "CPU"),
    "/task:1/job:x": DeviceSpec(job="x", task=1),
    "/job:worker//gpu:0": DeviceSpec(job="worker", device_type="GPU", device_index=0),
    "/job:worker/task:007": DeviceSpec(job="worker", task=7),
}
BAD = {
    "/jobs:x": "jobs:x",
    "/job:x:y": "job:x:y",
    "/job": "job",
    "/job:": "job:",
    "/job:*": "job:*",
    "/job:a-b": "job:a-b",
    "/job:1st": "job:1st",
    "/task:": "task:",
    "/task:one": "task:one",
    "/task:-1": "task:-1",
    "/task:+1": "task:+1",
    "/task: 1": "task: 1",
    "/task:1_0": "task:1_0",
    "/task:*": "task:*",
    "/replica:x": "replica:x",
    "/gpu:x": "gpu:x",
    "/gpu:-1": "gpu:-1",
    "/gpu:": "gpu:",
    "/gpu:0:0": "gpu:0:0",
    "/device:GPU": "device:GPU",
    "/device:GPU:x": "device:GPU:x",
    "/device::0": "device::0",
    "/device:G PU:0": "device:G PU:0",
    "/npu:0": "npu:0",
    "/:0": ":0",
    "worker": "worker",
    "/job:a/job:b": "job:b",
    "/task:0/task:0": "task:0",
    "/gpu:0/cpu:0": "cpu:0",
    "/gpu:0/device:GPU:0": "device:GPU:0",
    "/cpu/gpu": "gpu",
}


@pytest.mark.parametrize("text", GOOD)
def test_reads(text: str) -> None:
    assert DeviceSpec.from_string(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_refuses_and_quotes_the_wrong_part(text: str) -> None:
    with pytest.raises(DeviceSpecError) as caught:
        DeviceSpec.from_string(text)
    assert f"the part {BAD[text]!r}" in str(caught.value)
    assert "/device:TYPE:N" in str(caught.value)


@pytest.mark.parametrize("text", [None, 0, b"/gpu:0", ["/gpu:0"]])
def test_refuses_what_is_not_a_string(text: object) -> None:
    with pytest.raises(DeviceSpecError, match="has to be a str such as '/gpu:0'"):
        DeviceSpec.from_string(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", ""),
        ("job", 0),
        ("job", "a/b"),
        ("job", "ps\n"),
        ("replica", -1),
        ("task", "1"),
        ("task", True),
        ("task", 1.0),
        ("device_type", ""),
        ("device_type", "GPU:0"),
        ("device_type", 1),
        ("device_index", -2),
    ],
)
def test_fields_are_checked(field: str, value: object) -> None:
    with pytest.raises(DeviceSpecError, match=f"{field} is {value!r}".replace("\\", ".+")):
        DeviceSpec(**{field: value})  # type: ignore[arg-type]


def test_error_is_a_value_error_and_ours() -> None:
    assert issubclass(DeviceSpecError, ValueError) and issubclass(DeviceSpecError, DeviceError)


def test_canonical_string() -> None:
    assert str(DeviceSpec.from_string("/gpu:0/task:1/job:worker")) == "/job:worker/task:1/device:GPU:0"
    assert DeviceSpec("ps", 0, 1, "cpu", 2).to_string() == "/job:ps/replica:0/task:1/device:CPU:2"
    assert DeviceSpec(device_type="CPU").to_string() == "/device:CPU:*"
    assert DeviceSpec().to_string() == ""
    assert repr(DeviceSpec(job="ps", task=0)) == "DeviceSpec(job='ps', task=0)"


def test_takes_integers_of_numpy() -> None:
    import numpy

    spec = DeviceSpec(task=numpy.int64(3))  # type: ignore[arg-type]
    assert spec == DeviceSpec(task=3) and type(spec.task) is int


@given(written_specs())
def test_string_and_back(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_string(spec.to_string()) == spec
    assert hash(DeviceSpec.from_string(spec.to_string())) == hash(spec)
    assert eval(repr(spec), {"DeviceSpec": DeviceSpec}) == spec  # noqa: S307


@given(any_specs(), any_specs(), any_specs())
def test_merging_is_associative(a: DeviceSpec, b: DeviceSpec, c: DeviceSpec) -> None:
    assert a.make_merged_spec(b).make_merged_spec(c) == a.make_merged_spec(b.make_merged_spec(c))


@given(any_specs(), any_specs())
def test_merging_keeps_the_inner_fields(outer: DeviceSpec, inner: DeviceSpec) -> None:
    merged = outer.make_merged_spec(inner)
    for field in ("job", "replica", "task", "device_type", "device_index"):
        wanted = getattr(inner, field) if getattr(inner, field) is not None else getattr(outer, field)
        assert getattr(merged, field) == wanted
    assert inner.make_merged_spec(inner) == inner
    assert outer.make_merged_spec(DeviceSpec()) == outer == DeviceSpec().make_merged_spec(outer)


def test_merging_with_a_string_is_refused() -> None:
    with pytest.raises(DeviceSpecError, match=r"DeviceSpec\.from_string"):
        DeviceSpec().make_merged_spec("/gpu:0")  # type: ignore[arg-type]


def test_replace() -> None:
    spec = DeviceSpec.from_string("/job:ps/task:0/cpu:0")
    assert spec.replace(task=1, device_type="gpu").to_string() == "/job:ps/task:1/device:GPU:0"
    assert spec.replace(device_type=None, device_index=None).to_string() == "/job:ps/task:0"
    with pytest.raises(DeviceSpecError, match="no field device; it has job, replica"):
        spec.replace(device="GPU")
    with pytest.raises(DeviceSpecError, match="task is -1"):
        spec.replace(task=-1)


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        DeviceSpec().job = "ps"  # type: ignore[misc]
