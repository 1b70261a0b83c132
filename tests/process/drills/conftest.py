"""Tasks of drills are forked by the one process that has imported everything, as for parameter servers."""

from process.parameters.conftest import nursery as nursery
