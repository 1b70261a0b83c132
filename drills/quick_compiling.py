"""Compiler flags for programs that only have to be right and run for seconds: compiling takes a quarter of the time."""

XLA_FLAGS = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
QUICKLY = {"XLA_FLAGS": XLA_FLAGS}
"""What to add to the environment of a process."""
