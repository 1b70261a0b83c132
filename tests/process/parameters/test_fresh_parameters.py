"""What a worker computes on is of now: neither a compiler nor a pause makes its gradients stale."""

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE

LONG = 2.0


def test_neither_compiling_nor_a_pause_makes_gradients_stale(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script(f"""
        strategy = sg.ParameterServerStrategy()
        state = strategy.init(initial(), optimizer())
        if strategy.is_chief:
            step = strategy.train_step(loss_fn)
            for _ in until_there("end"):
                state, _ = step(state, BATCH)
                print("under way", flush=True)
        else:
            def slow_to_compile(params, batch):
                time.sleep({LONG})
                return loss_fn(params, batch)
            step = strategy.train_step(slow_to_compile)
            found = []
            for pause in (0, 0, {LONG}, 0):
                before = int(state.step)
                time.sleep(pause)
                state, metrics = step(state, BATCH)
                found.append([int(metrics["global_step"]) - before, metrics["staleness"]])
            tell(found=found)
            Path(__file__).with_name("end").touch()
        strategy.close()
    """)
    job = new_job(1, 2)
    server = job.serve(0)
    chief = job.start("worker", 0, path)
    chief.says("under way")
    other = job.start("worker", 1, path)
    for task in (other, chief, server):
        task.ends_well()
    compiled, _, paused, _ = other.results()[0]["found"]
    for updates, staleness in (compiled, paused):
        assert updates > 20, "the chief did not train meanwhile"
        assert staleness < updates / 5, (updates, staleness)
