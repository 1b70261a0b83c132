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
    state, step = strategy.init(initial(), optimizer), strategy.train_step(loss_fn)
    for batch in strategy.distribute(batches):
        state, _ = step(state, batch)
    return state

def held(state):
    return sum(shard.data.nbytes for leaf in state.flat_opt_state for shard in leaf.addressable_shards)
"""
SHARDED = """
for name, optimizer in OPTIMIZERS.items():
    expected, state = trained(whole, optimizer), trained(shards, optimizer)
    found, expected_found = shards.fetch(state), whole.fetch(expected)
    for what in ("params", "opt_state"):
        for one, other in zip(*(jax.tree.leaves(getattr(each, what)) for each in (found, expected_found))):
            scale = max(np.abs(other).max(), 1e-30)
            assert np.abs(one - other).max() <= 2e-6 * scale, (name, what, np.abs(one - other).max() / scale)
    print(name, "holds", held(state), "of", held(expected))
"""


def parts_held(out: str) -> dict[str, tuple[int, int]]:
    return {
        name: (int(part), int(all_)) for name, part, all_ in re.findall(r"(\w+) holds (\d+) of (\d+)", out)
    }


def test_devices_of_one_process_share_out_the_state_of_an_optimizer(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script(f"""
whole, shards = sg.MirroredStrategy(), sg.MirroredStrategy(shard_state=True)
{SHARDED}""")
    found = parts_held(nursery.said(path))
    assert found["sgd"] == (0, 0)
    for name in ("momentum", "adam"):
        part, whole = found[name]  # on four devices
        assert part <= whole / 4 + 4 * SMALL, name


def test_processes_share_it_out_and_a_checkpoint_has_all_of_it(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script(f"""
from pathlib import Path

shards = sg.MultiWorkerMirroredStrategy(shard_state=True)
whole = sg.OneDeviceStrategy()
{SHARDED}
saved = sg.Checkpointer(Path(__file__).with_name("saved"))
saved.save(state)
saved.close()
likes = shards.init(initial(), OPTIMIZERS["adam"]), whole.init(initial(), OPTIMIZERS["adam"])
for strategy, like in zip((shards, whole), likes):
    if strategy is shards or shards.is_chief:
        with sg.Checkpointer(Path(__file__).with_name("saved")) as checkpoints:
            back = checkpoints.restore(like=like)
        for one, other in zip(jax.tree.leaves(strategy.fetch(back)), jax.tree.leaves(found)):
            np.testing.assert_array_equal(one, other)
print("the same again")
shards.close()
""")
    out = nursery.said(*RUN, path)
    assert out.count("the same again") == 2
    for name, (part, whole) in parts_held(out).items():
        assert part <= whole / 2 + 4 * SMALL, f"{name}: four of eight devices have an eighth each"


def test_a_state_in_parts_is_for_all_workers_to_fetch(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy(shard_state=True)
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


def test_shared_memory_does_not_share_out(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        sg.MultiWorkerMirroredStrategy(communication="shm", shard_state=True)
    """)
    done = nursery.outcome(*RUN, path)
    assert "shard_state=True is for XLA's communication" in done.stderr


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
        from stratagem.engines.global_mesh import GlobalMesh
        from stratagem.engines.mesh_programs import MeshPrograms
        from stratagem.engines.pieces import optimizer_in_pieces
        from stratagem.engines.replicas import Replicas
        from stratagem.waist import FunctionTrainable, new_state

        devices, shards = jax.devices(), {shards}
        mesh = GlobalMesh(Replicas(devices[:2]), [devices[:2], devices[2:]])  # as two workers have them
        state = new_state(initial(), optax.adam(0.1))
        trainable = FunctionTrainable(jax.tree.structure(initial()), loss_fn)
        program = MeshPrograms(trainable, mesh, False, mesh.mesh if shards else None).even
        places = optimizer_in_pieces(state, mesh.mesh) if shards else jax.tree.map(lambda _: mesh.whole, state)
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
