"""What is said when workers, models, optimizers and servers do not fit together; and where variables went."""

import re
from pathlib import Path

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE


def test_workers_with_different_models(new_job: JobMaker, script: ScriptWriter, tmp_path: Path) -> None:
    path = script("""
        leaves, rate, rule = sys.argv[1:]
        strategy = sg.ParameterServerStrategy(update=eval(rule))
        state = strategy.init(initial(int(leaves)), optax.sgd(float(rate)))
        tell(joined=True)
        step = strategy.train_step(loss_fn)
        for _ in range(5):
            state, metrics = step(state, BATCH)
        wait_for("enough")
    """)
    job = new_job(1, 2)
    server = job.serve(0)
    chief = job.start("worker", 0, path, 3, 0.1, "sg.Async()")
    chief.says("told")
    for arguments, difference in {
        (4, 0.1, "sg.Async()"): "what is trained is 4 of them instead of 3",
        (3, 0.2, "sg.Async()"): "the optimizer, or a number in it, is .*",
        (3, 0.1, "sg.Sync()"): r"the update rule is 'Sync' instead of 'Async'",
    }.items():
        wrong = job.start("worker", 1, path, *arguments)
        assert wrong.ends() == 1
        assert wrong.results() == []
        assert re.search(
            "errors.StrategyError: /job:worker/task:1 brings another model than the one on /job:ps/task:0: "
            f"{difference}. All workers must run the same script with the same arguments",
            wrong.text,
        ), wrong.text
    right = job.start("worker", 1, path, 3, 0.1, "sg.Async()")
    (tmp_path / "enough").touch()
    for task in (right, chief, server):
        task.ends_well()


def test_what_can_be_split_and_where_it_goes(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        sg.configure(log_device_placement=True)
        strategy = sg.ParameterServerStrategy(partitioner=sg.FixedShards(2))
        params = {"w": np.ones((5, 2), np.float32), "b": np.ones(2, np.float32), "s": np.float32(1)}
        def train(optimizer):
            state = strategy.init(params, optimizer)
            step = strategy.train_step(loss_fn)
            for _ in range(3):
                state, metrics = step(state, BATCH)
            return jax.tree.leaves(strategy.fetch(state).params)
        def same(optimizer):
            alone = sg.OneDeviceStrategy()
            state, step = alone.init(params, optimizer), alone.train_step(loss_fn)
            for _ in range(3):
                state, metrics = step(state, BATCH)
            for one, other in zip(train(optimizer), jax.tree.leaves(alone.fetch(state).params)):
                np.testing.assert_allclose(one, other, rtol=1e-5)
        print("--- sgd", flush=True)
        same(optax.sgd(0.1))
        print("--- lamb", flush=True)
        same(optax.lamb(0.1))
        print("--- not to be split", flush=True)
        try:
            train(optax.chain(optax.adam(0.1), optax.clip_by_global_norm(1.0)))
        except sg.StrategyError as error:
            print("refused:", error)
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    text = job.start("worker", 0, path).ends_well()
    for server in servers:
        server.ends_well()
    _, sgd, lamb, refused = re.split("--- .*\n", text)

    def placed(text: str) -> dict[str, str]:
        return dict(re.findall(r"^(\S+): \(Variable\): (\S+)$", text, re.MULTILINE))

    where = "/job:ps/replica:0/task:{}/device:CPU:0"
    assert placed(sgd) == {
        "['b']/part_0": where.format(0),
        "['b']/part_1": where.format(1),
        "['s']": where.format(0),
        "['w']/part_0": where.format(1),
        "['w']/part_1": where.format(0),
    }
    assert "stays whole" not in sgd
    for name in ("b", "w"):
        assert f"params/['{name}'] is not cut into 2 parts, it stays whole: " in lamb
    assert set(placed(lamb)) == {"['b']", "['s']", "['w']"}
    assert re.search("refused: the optimizer cannot be split over parameter servers: .*params/", refused)
