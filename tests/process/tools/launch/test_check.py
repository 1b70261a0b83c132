"""`stratagem check`: on a machine, in a job, and where something is wrong."""

import re

from drills.nursery import Nursery
from process.conftest import ScriptWriter

PRELUDE = """
import sys
"""


def test_a_machine_without_accelerators(nursery: Nursery) -> None:
    out = nursery.said("stratagem", "check", "--seconds", "0.02", "--only", "XLA, shard")
    assert "4 virtual CPU devices stand in" in out
    assert re.search(r"OneDevice +│ 1 +│ 0.0e\+00 +│ the same", out)
    assert re.search(r"by XLA, shard_state +│ 4 +│ [1-9]\.\de-0[678] +│ the same +│ [\d,]+ +│ \d+\.\d\d", out)
    assert out.endswith("All train as one device does.\n")


def test_the_tasks_of_a_job_are_tried_together(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        from stratagem.tools.launch.cli import main
        sys.argv = ["stratagem", "check", "--seconds", "0.02"]
        main()
    """)
    out = nursery.said("stratagem", "run", "--workers", "2", path)
    assert len(re.findall("All train as one device does.", out)) == 1, "the chief reports"
    assert re.search(r"\[worker:0\].*MultiWorkerMirrored +│ 2 +│ [\d.]+e-\d+ +│ the same", out)


def test_a_strategy_that_trains_otherwise_is_named(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        from stratagem.tools import checking
        from stratagem.strategies import OneDeviceStrategy

        class Careless(OneDeviceStrategy):
            def distribute(self, batches):
                return super().distribute((values * 1.001, labels) for values, labels in batches)
        checking._STRATEGIES[checking.MULTI_WORKER] = Careless
        from stratagem.tools.launch import check
        check.resolve_cluster = lambda: True
        from stratagem.tools.launch.cli import main
        sys.argv = ["stratagem", "check", "--seconds", "0.02"]
        main()
    """)
    done = nursery.outcome(path)
    assert done.returncode == 1, done.stderr
    assert "DIFFERENT" in done.stdout
    assert "not as on one device: MultiWorkerMirrored" in done.stderr
