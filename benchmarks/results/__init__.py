"""All benchmarks in one run, and the file with their results: see `benchmarks.__main__`."""
