"""The races: their contenders, and the ratios to reach."""

from benchmarks.parameter_servers.running import Job
from benchmarks.racing.races import FREE, TRIED, Comparison, Race
from benchmarks.racing.work import SMALL
from stratagem import environment

OVER_TCP = {environment.SHARED_MEMORY: "off"}


def _asynchronous(workers: int) -> Race:
    """Return a race of Stratagem, TensorFlow, and as many workers without a server."""
    is_main = workers == 2
    against_tensorflow = ({SMALL: 3.0}, {SMALL: 4.0}) if is_main else ({}, {})
    against_none = ({SMALL: 0.7}, {SMALL: 0.85}) if is_main else ({}, {})
    return Race(
        name=f"async, {workers} worker{'s' * (workers > 1)}",
        replicas=1,
        devices=1,
        contenders=(
            Job("TensorFlow", "tensorflow_servers", "asynchronous", workers, TRIED, "with a server"),
            Job("Async()", "stratagem_servers", "asynchronous", workers),
            Job("Async(overlap=True)", "stratagem_servers", "overlapping", workers),
            Job("no server: bare JAX", "jax_alone", "alone", workers, TRIED, "alone"),
            Job("no server: OneDeviceStrategy", "stratagem_servers", "one_device", workers, TRIED, "alone"),
        ),
        comparisons=(
            Comparison("Async()", "TensorFlow", *against_tensorflow),
            Comparison("Async(overlap=True)", "TensorFlow", *against_tensorflow),
            Comparison("Async()", "no server: bare JAX", *against_none),
            Comparison("Async(overlap=True)", "no server: bare JAX", *against_none),
            Comparison("Async()", "no server: OneDeviceStrategy"),
        ),
    )


RACES = (
    _asynchronous(2),
    Race(
        name="sync, 2 workers",
        replicas=2,
        devices=1,
        contenders=(
            Job("TensorFlow", "tensorflow_servers", "synchronous", 2, TRIED, "with a server", replicas=2),
            Job("Sync()", "stratagem_servers", "synchronous", 2, replicas=2),
        ),
        comparisons=(Comparison("Sync()", "TensorFlow", {SMALL: 3.0}),),
    ),
    Race(
        name="async over TCP, 2 workers",
        replicas=1,
        devices=1,
        contenders=(
            Job("TensorFlow", "tensorflow_servers", "asynchronous", 2, TRIED, "with a server"),
            Job("Async()", "stratagem_servers", "asynchronous", 2, environ=OVER_TCP),
            Job("Async(overlap=True)", "stratagem_servers", "overlapping", 2, environ=OVER_TCP),
        ),
        comparisons=(
            Comparison("Async()", "TensorFlow", {SMALL: 2.0}),
            Comparison("Async(overlap=True)", "TensorFlow", {SMALL: 2.0}),
        ),
    ),
    Race(
        name="Keras, 2 workers",
        replicas=1,
        devices=1,
        contenders=(
            Job("plain functions", "stratagem_servers", "asynchronous", 2),
            Job("Keras fit", "keras_servers", "asynchronous", 2),
        ),
        comparisons=(Comparison("Keras fit", "plain functions", {SMALL: 0.9}),),
    ),
    _asynchronous(1),
    _asynchronous(3),
)

LARGE = "25 million parameters, Adam"
LARGE_RACE = Race(
    name="push and pull",
    replicas=1,
    devices=1,
    contenders=(
        Job("bare copies and update", "large_model", "copies_and_update", 1, FREE, "alone"),
        Job("Async(), 1 worker", "large_model", "push_and_pull", 1),
    ),
    comparisons=(Comparison("Async(), 1 worker", "bare copies and update", {LARGE: 0.5}),),
)
"""Half the speed is twice the time, which is what a push and a pull may take."""
