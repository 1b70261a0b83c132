"""Jobs of forked tasks, as for the tests of parameter servers."""

from process.parameters.conftest import new_job as new_job
from process.parameters.conftest import nursery as nursery
