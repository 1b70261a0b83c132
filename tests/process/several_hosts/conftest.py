"""Tasks are forked by the one process that has imported everything, each into a host of its own."""

from process.parameters.conftest import nursery as nursery
