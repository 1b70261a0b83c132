"""An exception in two lines: what it says, and where in the user's code it came out of ours."""

import traceback

import pytest

import stratagem as sg
from stratagem.runtime.stderr import summary


def test_the_line_is_that_of_the_user() -> None:
    with pytest.raises(sg.ClusterError) as caught:
        sg.resolve_cluster(["--worker_hosts=a:1", "--job_name"], {})
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 2
    said, where = summary(caught.value)
    assert said == f"stratagem.errors.ClusterError: {caught.value}"
    assert where.startswith(f"  in {__file__}, line ")
    assert where.endswith(': sg.resolve_cluster(["--worker_hosts=a:1", "--job_name"], {})')


def test_what_was_never_raised_has_no_line() -> None:
    assert summary(sg.WorkerLost("gone")) == ["stratagem.errors.WorkerLost: gone"]
