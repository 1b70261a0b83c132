"""Jobs with parameter servers, as for the tests of those."""

from process.parameters.conftest import new_job as new_job
