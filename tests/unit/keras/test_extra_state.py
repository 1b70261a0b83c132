"""The chief's control values: a seed for the order of batches, and the fit that it has stopped."""

import numpy as np

from stratagem.keras.extra_state import ChiefControl


def test_each_fit_has_an_shuffle_seed_its_own_and_is_stopped_by_itself() -> None:
    control = ChiefControl.new()
    assert control.shuffle_seed(1) != control.shuffle_seed(2)
    assert control.shuffle_seed(1) == ChiefControl(np.array(control.values)).shuffle_seed(1)
    assert not control.has_stopped(1)
    stopped = ChiefControl(control.values_with_stop(1))
    assert stopped.has_stopped(1)
    assert not stopped.has_stopped(2)
    assert stopped.shuffle_seed(1) == control.shuffle_seed(1)
