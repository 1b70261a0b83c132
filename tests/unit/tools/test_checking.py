"""What `stratagem check` tries, and when it says that a strategy is as one device."""

import math

import pytest

from stratagem.tools.checking import (
    MIRRORED,
    MULTI_WORKER_XLA,
    ONE_DEVICE,
    TOLERANCE,
    TPU,
    Case,
    TrialResult,
    cases,
)


def found(difference: float) -> TrialResult:
    return TrialResult(2, "cpu", difference, 1.0, None)


@pytest.mark.parametrize("difference", [TOLERANCE * 2, math.nan, math.inf])
def test_what_differs_does_not_agree(difference: float) -> None:
    assert found(TOLERANCE / 2).agrees
    assert not found(difference).agrees


def test_all_devices_take_part_in_every_case_but_the_reference() -> None:
    first, *others = cases(8, are_tpus=False)
    assert first == Case(ONE_DEVICE)
    assert {each.devices * each.workers for each in others} == {8}
    assert Case(MULTI_WORKER_XLA, 4, workers=2) in others


def test_one_device_is_only_tried_by_itself() -> None:
    assert list(cases(1, are_tpus=False)) == [Case(ONE_DEVICE)]


def test_tpus_are_one_processs() -> None:
    found = list(cases(4, are_tpus=True))
    assert {each.workers for each in found} == {1}
    assert Case(TPU, 4) in found
    assert Case(MIRRORED, 4) in found
