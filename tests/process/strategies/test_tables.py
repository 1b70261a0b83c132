"""Tables on several devices: the rows become what those of a dense variable on one device do."""

from pathlib import Path

import numpy as np
import pytest

from drills.nursery import Nursery
from table_training import OPTIMIZERS, Trained, check_same

JOB = Path(__file__).with_name("tables_job.py")


@pytest.mark.parametrize("expression", ["sg.MirroredStrategy()", "sg.CentralStorageStrategy()"])
def test_rows_become_what_those_of_a_dense_variable_do(
    expression: str, nursery: Nursery, tmp_path: Path
) -> None:
    path = tmp_path / "results.npz"
    nursery.run(tmp_path, JOB, expression, path, ps=0, workers=1, seconds=240.0)
    with np.load(path) as found:
        assert found["replicas"] == 2
        for name in OPTIMIZERS:
            trained, expected = (
                Trained(*(found[f"{name}/{way}/{kind}"] for kind in Trained._fields))
                for way in ("by row", "densely")
            )
            check_same(trained, expected)
            assert trained.losses[-20:].mean() < trained.losses[:20].mean() / 2
