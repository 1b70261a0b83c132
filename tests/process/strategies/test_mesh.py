"""Steps that are one program over the devices of several processes: what they are made of, and what they come to."""

import re

import pytest

from drills.nursery import Nursery
from process.conftest import ScriptWriter

RUN = ("stratagem", "run", "--workers", "2")
SMALL = 28
"""Bytes of Adam's state that do not go into so many pieces, and are whole on each device: those of three numbers, a count."""
PRELUDE = """
import re, sys
import stratagem as sg
sg.configure(virtual_devices=4)
import jax, jax.numpy as jnp, numpy as np, optax

SIZES = [24, 24, 17, 24, 1]
OPTIMIZERS = {"sgd": optax.sgd(0.05), "momentum": optax.sgd(0.02, momentum=0.9), "adam": optax.adam(1e-2)}
random = np.random.default_rng(0)
batches = [
    tuple(random.standard_normal((SIZES[step % 5], width)).astype(np.float32) for width in (8, 3)) for step in range(200)
]

def initial():
    random = np.random.default_rng(1)
    shapes = {"w1": (8, 64), "b1": (64,), "w2": (64, 3), "b2": (3,)}
    return {name: random.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}

def loss_fn(params, batch):
    features, wanted = batch
    return jnp.mean((jnp.tanh(features @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"] - wanted) ** 2)

def trained(strategy, optimizer):
    state, step = strategy.init(initial(), optimizer, ema_decay=0.9), strategy.train_step(loss_fn)
    for batch in strategy.distribute(batches):
        state, _ = step(state, batch)
    return state

def held(state):
    return sum(shard.data.nbytes for leaf in state.flat_opt_state for shard in leaf.addressable_shards)
"""
DIFFERENCE = """
def difference(state, other):
    state, other = ([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(each)] for each in (state, other))
    state, other = (np.concatenate([np.zeros(0), *each]) for each in (state, other))
    return np.linalg.norm(state - other) / max(np.linalg.norm(other), 1e-30)
"""


def parts_held(out: str) -> dict[str, tuple[int, int]]:
    return {
        name: (int(part), int(all_)) for name, part, all_ in re.findall(r"(\w+) holds (\d+) of (\d+)", out)
    }


def bytes_held(out: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"(\w+) holds (\d+)", out)}


def test_devices_of_one_process_share_out_the_state_of_an_optimizer(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script(f"""
{DIFFERENCE}
whole, shards = sg.MirroredStrategy(), sg.MirroredStrategy(shard_state=True)
for name, optimizer in OPTIMIZERS.items():
    expected, state = trained(whole, optimizer), trained(shards, optimizer)
    values, expected_values = shards.fetch(state), whole.fetch(expected)
    assert difference(values.params, expected_values.params) < 1e-6, name
    assert difference(values.opt_state, expected_values.opt_state) < 1e-6, name
    print(name, "holds", held(state), "of", held(expected))
""")
    parts = parts_held(nursery.said(path))
    assert parts["sgd"] == (0, 0)
    for name in ("momentum", "adam"):
        part, whole = parts[name]  # on four devices
        assert part <= whole / 4 + 4 * SMALL, name


# On three devices and more, gloo adds up in another order than XLA does without it.
@pytest.mark.parametrize(("communication", "tolerance"), [("shm", 0.0), ("ring", 1e-6)])
def test_processes_share_it_out_and_a_checkpoint_has_all_of_it(
    nursery: Nursery, script: ScriptWriter, communication: str, tolerance: float
) -> None:
    path = script(f"""
from pathlib import Path

{DIFFERENCE}
shards_state = sys.argv[1] == "in parts"
strategy = sg.MultiWorkerMirroredStrategy(communication="{communication}", shard_state=shards_state)
file = Path(__file__).with_name("whole.npz")
expected = {{}} if not shards_state else dict(np.load(file))
values = {{}}
for name, optimizer in OPTIMIZERS.items():
    state = trained(strategy, optimizer)
    fetched = strategy.fetch(state)
    for what in ("params", "opt_state", "ema"):
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(getattr(fetched, what))]
        values |= {{f"{{name}} {{what}} {{number}}": leaf for number, leaf in enumerate(leaves)}}
        wanted = [leaf for key, leaf in expected.items() if key.startswith(f"{{name}} {{what}} ")]
        if shards_state:
            assert len(leaves) == len(wanted) and difference(leaves, wanted) <= {tolerance}, (name, what)
    print(name, "holds", held(state))
if not shards_state:
    if strategy.is_chief:
        np.savez(file, **values)
    sys.exit()
saved = sg.Checkpointer(Path(__file__).with_name("saved"))
saved.save(state)
saved.close()
alone = sg.OneDeviceStrategy()
for other in (strategy, alone):
    like = other.init(initial(), OPTIMIZERS["adam"], ema_decay=0.9)
    if other is strategy or strategy.is_chief:
        with sg.Checkpointer(Path(__file__).with_name("saved")) as checkpoints:
            back = checkpoints.restore(like=like)
        for one, same in zip(jax.tree.leaves(other.fetch(back)), jax.tree.leaves(fetched), strict=True):
            np.testing.assert_array_equal(one, same)
print("the same again")
strategy.close()
""")
    path.write_text(path.read_text().replace("virtual_devices=4", "virtual_devices=2"))
    whole = bytes_held(nursery.said(*RUN, path, "whole"))
    out = nursery.said(*RUN, path, "in parts")
    assert out.count("the same again") == 2
    for name, part in bytes_held(out).items():
        assert part <= whole[name] / 4 + 2 * SMALL, f"{name}: two of four devices have a quarter each"


@pytest.mark.parametrize("communication", ["shm", "ring"])
def test_a_state_in_parts_is_for_all_workers_to_fetch(
    nursery: Nursery, script: ScriptWriter, communication: str
) -> None:
    path = script(f"""
        strategy = sg.MultiWorkerMirroredStrategy(communication="{communication}", shard_state=True)
        state, step = strategy.init(initial(), optax.adam(0.1)), strategy.train_step(loss_fn)
        for batch in strategy.distribute(batches):
            state, _ = step(state, batch)
            if strategy.is_chief:
                strategy.fetch(state)
    """)
    done = nursery.outcome(*RUN, path)
    assert done.returncode == 1
    wanted = "worker 0 fetches or saves a state of which each worker has a part .* call strategy.fetch .* on every worker"
    assert re.search(wanted, done.stderr), done.stderr


def test_metrics_are_an_ordinary_dictionary_to_whoever_looks(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy(communication="ring")
        state, step = strategy.init(initial(), optax.adam(0.1)), strategy.train_step(lambda *of: (loss_fn(*of), {"one": 1}))
        for batch in strategy.distribute(batches[:3]):
            state, metrics = step(state, batch)
        assert isinstance(metrics, dict) and sorted(metrics) == ["loss", "one"], metrics
        plain = {name: float(value) for name, value in metrics.items()}
        assert plain == {**jax.device_get(metrics)} == jax.tree.map(float, metrics) == dict(metrics), plain
        assert (metrics["one"], metrics.get("one"), metrics.get("two", 2), len(metrics)) == (1, 1, 2, 2)
        assert jnp.asarray(metrics["loss"]).is_fully_addressable, "one's own to compute with"
        assert np.isclose(jnp.sum(state.params["b1"]), np.sum(strategy.fetch(state).params["b1"]))
        print("like any other")
    """)
    assert nursery.said(*RUN, path).count("like any other") == 2


def test_workers_with_other_numbers_of_devices_are_told(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy(communication="ring")
    """)
    text = path.read_text().replace(
        "sg.configure(virtual_devices=4)",
        "sg.configure(virtual_devices=2 + sg.resolve_cluster().task_index)",
    )
    path.write_text(text)
    done = nursery.outcome(*RUN, path)
    assert done.returncode == 1
    assert "different numbers of devices: worker 0 has 2, worker 1 has 3" in done.stderr, done.stderr


@pytest.mark.parametrize("shards", [False, True])
def test_on_accelerators_it_is_one_program_without_the_host(
    nursery: Nursery, script: ScriptWriter, shards: bool
) -> None:
    """Lowered for what is not here: sums inside, over all devices, and nothing that asks the host."""
    path = script(rf"""
        from stratagem.engines.meshes import GlobalMesh
        from stratagem.engines.mesh_engine import MeshPrograms
        from stratagem.engines.meshes import optimizer_in_shards
        from stratagem.engines.replicas import Replicas
        from stratagem.waist import FunctionTrainable, new_state

        devices, shards = jax.devices(), {shards}
        mesh = GlobalMesh(Replicas(devices[:2]), [devices[:2], devices[2:]])  # as two workers have them
        state = new_state(initial(), optax.adam(0.1))
        trainable = FunctionTrainable(jax.tree.structure(initial()), loss_fn)
        program = MeshPrograms(trainable, mesh, False, mesh.mesh if shards else None).even
        places = optimizer_in_shards(state, mesh.mesh) if shards else jax.tree.map(lambda _: mesh.whole, state)
        form = lambda leaf, place: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=place)
        batch = tuple(jax.ShapeDtypeStruct((16, width), np.float32, sharding=mesh.by_replica) for width in (8, 3))
        arguments = jax.tree.map(form, state, places), batch, form(mesh.numbers(), mesh.by_worker)
        for platform in ("cuda", "tpu"):
            exported = jax.export.export(program, platforms=[platform])(*arguments)
            assert exported.nr_devices == 4
            text = exported.mlir_module()
            sums = re.findall(r"stablehlo.all_reduce.*?replica_groups = dense<(.*?)>", text)
            assert len(sums) >= 4 and set(sums) == {{"[[0, 2], [1, 3]]"}}, sums  # over workers; over devices come XLA's own
            for word in ("custom_call @xla", "callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
                assert word not in text, word
        # XLA's own are put in when it compiles, which it does here for CPUs.
        compiled = program.lower(*arguments).compile().as_text()
        groups = re.findall(r" (all-reduce|all-gather|reduce-scatter)(?:-start)?\(.*?replica_groups=(.*?), ", compiled)
        assert ("all-reduce", "[2,2]<=[4]") in groups, groups
        assert ("all-gather" in dict(groups)) == shards, groups
        assert "reduce-scatter" not in compiled, "gloo's gives wrong values"
        print("one program")
    """)
    assert nursery.said(path) == "one program\n"
