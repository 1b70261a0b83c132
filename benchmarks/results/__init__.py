"""All benchmarks in one run, and the file that tells what came of them: see `benchmarks.__main__`."""
