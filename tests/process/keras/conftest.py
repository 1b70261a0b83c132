"""Jobs whose tasks are started and killed one by one, as in the tests of parameter servers."""

from process.parameters.conftest import new_job, nursery

__all__ = ["new_job", "nursery"]
