"""Keras models under all strategies: the same as plain Keras on one device with the same global batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.nursery import Nursery
from proofs import KERAS, Proves, column

JOB = Path(__file__).with_name("keras_job.py")
SECONDS = 280.0
ALIKE = [
    "everyday",
    "outputs",
    "own_step",
    "nested",
    "averaged",
    "called_back",
    "untrained",
    "few",
    "backed_up",
    "loaded",
    "failing",
    "shuffled",
]
"""What comes to the same under every strategy whose workers are in step."""
UNTRAINED = ("untrained", "few")
"""What evaluates and predicts before it trains."""
ALL = (*ALIKE, "noisy", "saved", "scaled")


@dataclass(frozen=True)
class Contender:
    """A strategy, and what of it is asked."""

    expression: str
    cases: tuple[str, ...] = ALL
    is_served: bool = False


@dataclass(frozen=True)
class Start:
    """What is started for some strategies."""

    contenders: dict[str, Contender]
    devices: int = 1
    workers: int = 1
    ps: int = 0


STARTS = [
    Start(
        {
            "plain": Contender("None", (*ALL, "meddled")),
            "OneDevice": Contender("sg.OneDeviceStrategy()", ("own_step", "nested", "failing")),
            "Mirrored": Contender(
                "sg.MirroredStrategy()",
                ("everyday", "outputs", "few", "loaded", "noisy", "scaled", "shuffled"),
            ),
            "CentralStorage": Contender("sg.CentralStorageStrategy()", ("averaged", "called_back", "noisy")),
            "TPU": Contender("sg.TPUStrategy()", ("untrained", "backed_up")),
        },
        devices=2,
    ),
    Start(
        {
            "MultiWorkerMirrored": Contender(
                "sg.MultiWorkerMirroredStrategy(communication='shm')",
                tuple(case for case in ALL if case not in ("outputs", "few")),
            )
        },
        workers=2,
    ),
    Start(
        {
            "MultiWorkerMirrored, 3 workers of 2 devices": Contender(
                "sg.MultiWorkerMirroredStrategy()", ("outputs", "few", "untrained")
            )
        },
        devices=2,
        workers=3,
    ),
    Start(
        {
            "MultiWorkerMirrored over XLA, 2 devices each": Contender(
                "sg.MultiWorkerMirroredStrategy(communication='ring')", ("averaged", "few", "called_back")
            )
        },
        devices=2,
        workers=2,
    ),
    Start(
        {
            "ParameterServer, in step": Contender(
                "sg.ParameterServerStrategy(update=sg.Sync())", (*ALL, "meddled"), is_served=True
            )
        },
        workers=2,
        ps=2,
    ),
    Start(
        {
            "ParameterServer, one worker": Contender(
                "sg.ParameterServerStrategy()", ("backed_up", "failing"), is_served=True
            )
        },
        ps=1,
    ),
    Start(
        {
            "ParameterServer, in turns": Contender(
                "sg.ParameterServerStrategy()", ("turns", "saved"), is_served=True
            )
        },
        workers=2,
        ps=1,
    ),
    Start(
        {
            "ParameterServer, in turns and not far apart": Contender(
                "sg.ParameterServerStrategy(update=sg.BoundedStaleness(1))", ("turns",), is_served=True
            )
        },
        workers=2,
        ps=1,
    ),
]
WHERE = {name: (start, place) for start in STARTS for place, name in enumerate(start.contenders)}

Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What a strategy has come to: each worker's results, what they have said and written."""

    contender: Contender
    found: list[Found]
    said: list[str]
    directory: Path

    def of(self, case: str) -> list[Found]:
        """Each worker's results of a case."""
        chosen = [
            {name.partition("/")[2]: value for name, value in each.items() if name.startswith(f"{case}/")}
            for each in self.found
        ]
        for each in chosen:
            assert "failed" not in each, each["failed"]
        return chosen


@pytest.fixture(scope="module")
def job_of(keras_nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    """Starts what a strategy needs, once; what has become of it."""

    @cache
    def done(place: int) -> tuple[list[str], Path]:
        start = STARTS[place]
        directory = tmp_path_factory.mktemp("keras")
        asked = [
            each
            for contender in start.contenders.values()
            for each in (contender.expression, ",".join(contender.cases))
        ]
        said = keras_nursery.run(
            directory,
            JOB,
            directory,
            *asked,
            ps=start.ps,
            workers=start.workers,
            seconds=SECONDS,
            environ={"KERAS_DEVICES": str(start.devices)},
        )
        return said, directory

    def job(name: str) -> Job:
        start, place = WHERE[name]
        said, directory = done(STARTS.index(start))
        found = []
        for index in range(start.workers):
            with np.load(directory / str(place) / f"{index}.npz") as stored:
                found.append(dict(stored))
        return Job(start.contenders[name], found, said, directory / str(place))

    return job


def asked(*cases: str, alone: bool = True) -> pytest.MarkDecorator:
    """For each strategy and each of these cases that it is asked; without those of one process if not `alone`."""
    pairs = [
        (name, case)
        for name, (start, _) in WHERE.items()
        for case in cases
        if name != "plain" and case in start.contenders[name].cases and (alone or start.workers > 1)
    ]
    if len(cases) > 1:
        return pytest.mark.parametrize(("job", "case"), pairs, indirect=["job"])
    return pytest.mark.parametrize("job", [name for name, _ in pairs], indirect=True)


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, job_of: Callable[[str], Job]) -> Job:
    return job_of(request.param)


@pytest.fixture(scope="module")
def plain(job_of: Callable[[str], Job]) -> Job:
    return job_of("plain")


def compare(found: Found, expected: Found, tolerance: float = 1e-6) -> None:
    """Raise unless all results are there and the same, but for noise."""
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if value.dtype.kind == "U":
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], value, rtol=10 * tolerance, atol=tolerance, err_msg=name)


@asked(*ALIKE, "meddled")
def test_as_plain_keras_on_every_worker(job: Job, plain: Job, case: str, proves: Proves) -> None:
    proves(KERAS, column(job.contender.expression))
    (expected,) = plain.of(case)
    # Before the first training, workers of parameter servers have values of their own.
    is_own = job.contender.is_served and case in UNTRAINED
    for found in job.of(case)[:1] if is_own else job.of(case):
        compare(found, expected)


@asked("noisy")
def test_statistics_and_random_numbers_are_those_of_one_process_or_each_workers_own(
    job: Job, plain: Job
) -> None:
    (expected,) = plain.of("noisy")
    found = job.of("noisy")
    if len(found) == 1:
        compare(found[0], expected)
    for each in found:
        assert sorted(each) == sorted(expected)
        assert all(np.isfinite(value).all() for value in each.values())
        for name, value in each.items():
            np.testing.assert_array_equal(value, found[0][name], err_msg=name)


@asked("scaled")
def test_half_precision(job: Job, plain: Job) -> None:
    (expected,) = plain.of("scaled")
    for found in job.of("scaled"):
        if job.contender.is_served:
            # Each worker leaves out what is not finite by itself: a step is made of the others' rows.
            assert sorted(found) == sorted(expected)
            for name in (name for name in expected if "weights" in name):
                np.testing.assert_allclose(found[name], expected[name], atol=0.1, err_msg=name)
        else:
            # A sum that has become infinite is told as such by one process only.
            names = [name for name in expected if not name.startswith("history")]
            compare({name: found[name] for name in names}, {name: expected[name] for name in names}, 1e-4)


@asked("saved")
def test_every_worker_saves_and_loads(job: Job, plain: Job) -> None:
    (expected,) = plain.of("saved")
    for found in job.of("saved"):
        if "turns" in job.contender.cases:
            assert sorted(found) == sorted(expected)
            assert all(np.isfinite(value).all() for value in found.values())
            for what in ("difference", "predicted"):
                assert [found[f"{what} {number}"] for number in range(3)] == [0, 0, 0], what
        else:
            compare(found, expected)


@asked("loaded")
def test_only_the_chief_writes(job: Job) -> None:
    found = job.of("loaded")
    written = [
        sorted(path.name for path in (job.directory / "loaded").glob(f"worker-{index}/*"))
        for index in range(len(found))
    ]
    assert "log.csv" in written[0]
    assert sum(name.endswith(".weights.h5") for name in written[0]) == 1
    assert not any(written[1:])


@asked("loaded", alone=False)
def test_only_the_chief_shows_progress(job: Job) -> None:
    bars = [[line for line in said.splitlines() if "/step" in line] for said in job.said]
    assert list(map(len, bars)) == [1] + [0] * (len(bars) - 1)


@asked("meddled", alone=False)
def test_who_is_not_chief_is_told_once_that_it_has_no_say(job: Job) -> None:
    assert (
        "".join(job.said).count("has changed variables or hyperparameters of meddled, which has no effect")
        == 1
    )


@asked("shuffled")
def test_every_epoch_has_an_order_of_its_own(job: Job) -> None:
    for each in job.of("shuffled"):
        assert len(set(map(tuple, each["order"].reshape(6, 3)))) > 1


@asked("turns")
def test_workers_in_turns_make_one_pass_together(job: Job, proves: Proves) -> None:
    proves(KERAS, column(job.contender.expression))
    found = job.of("turns")
    # Three batches, four times: the worker that ends last knows of all of them.
    assert max(each["iterations"] for each in found) == 12
    for each in found:
        assert np.isfinite(each["history/loss"]).all()
        assert each["history/loss"].shape == (4,)
        assert each["undisturbed"], "what the script draws afterwards is not what it was seeded with"


@asked("turns")
def test_callbacks_see_the_batches_of_their_own_worker_in_turns(job: Job) -> None:
    chief, other = job.of("turns")
    assert chief["called"].tolist() == ["begin 0", "end 0", "begin 1", "end 1"] * 4
    assert other["called"].tolist() == ["begin 0", "end 0"] * 4
    assert [int(each["steps"]) for each in (chief, other)] == [2, 1]
    for each in (chief, other):
        assert np.isfinite(each["losses"]).all()


@asked("turns")
def test_workers_in_turns_evaluate_the_same_values(job: Job) -> None:
    chief, other = job.of("turns")
    assert len(set(chief["evaluated"].tolist())) == 4, "training has changed nothing"
    np.testing.assert_array_equal(chief["evaluated"], other["evaluated"])
    np.testing.assert_array_equal(chief["predicted"], other["predicted"])
    assert len({*chief["stopped"].tolist(), *other["stopped"].tolist()}) == 1
    assert len(set(chief["met/val_loss"].tolist())) == 3
    np.testing.assert_array_equal(chief["met/val_loss"], other["met/val_loss"])
    # What a worker has set itself is evaluated as it is: a prediction of one half everywhere.
    np.testing.assert_allclose([chief["edited"], other["edited"]], 0.25, rtol=1e-6)


@asked("turns")
def test_the_chief_stops_workers_in_turns(job: Job) -> None:
    chief, other = job.of("turns")
    assert chief["epochs"] == 3
    assert other["epochs"] < 10**6


@asked("turns")
def test_a_worker_without_a_batch_tells_no_loss(job: Job) -> None:
    chief, other = job.of("turns")
    assert np.isfinite(chief["single/loss"]).all()
    assert np.isnan(other["single/loss"]).all()
