"""Towers, parts of a model and clones on several devices of one process, virtual ones of the CPU."""

from drills.nursery import Nursery
from process.devices.scripts import run

SETUP = """
import stratagem as sg
sg.configure(virtual_devices=3)
import jax, jax.numpy as jnp, numpy as np, optax

def ids(tree):
    return jax.tree.map(lambda leaf: [device.id for device in leaf.devices()], tree)

# Work that takes so many rounds, each too much to be done at once by the thread that asks for it.
def work(x, rounds):
    return jax.lax.fori_loop(0, rounds, lambda _, y: jnp.tanh(y @ x), x)

def overlap(first, second, rounds=10**6):
    # Whether the second is done while the first, asked for earlier by the same thread, is still at work. If one
    # waited for the other this could never be seen. How long a round takes is unknown, so the first one's work grows.
    for exponent in range(3, len(str(rounds))):
        early, late = first(np.int32(10**exponent)), second(np.int32(10))
        late.block_until_ready()
        if not early.is_ready():
            return True
    return False

x = np.full((64, 64), 0.01, np.float32)
"""


def test_towers_parts_and_clones_compute_at_the_same_time(nursery: Nursery) -> None:
    run(
        SETUP
        + """
compiled = jax.jit(work)

def tower(index):
    def call(rounds):
        with sg.device(f"/cpu:{index}"):
            return compiled(x, rounds)
    return call

for index in range(2):
    assert ids(tower(index)(np.int32(1))) == [index]
assert overlap(tower(0), tower(1))
assert overlap(tower(1), tower(0))
placed = [sg.on_device(lambda rounds: work(x, rounds), f"/cpu:{index}") for index in range(2)]
for call in placed:
    call(np.int32(1))
assert overlap(*placed)

wanted = [np.int32(1)]
def rounds():
    while True:
        yield wanted.pop()

config = sg.deploy.DeploymentConfig(num_clones=2, clone_devices=["/cpu:1", "/cpu:2"])
clones = sg.deploy.create_clones(config, lambda scope, rounds: work(x, rounds), [rounds()])
clones[0].run()  # what making the clones looked at

def calling(clone):
    def call(rounds):
        wanted.append(rounds)
        return clone.run()
    return call

calling(clones[1])(np.int32(1))
assert overlap(calling(clones[0]), calling(clones[1]))
assert overlap(calling(clones[1]), calling(clones[0]))
""",
        nursery=nursery,
    )


def test_what_does_not_overlap_is_seen(nursery: Nursery) -> None:
    run(
        SETUP
        + """
jax.config.update("jax_cpu_enable_async_dispatch", False)
first, second = (sg.on_device(lambda rounds: work(x, rounds), f"/cpu:{index}") for index in range(2))
assert not overlap(first, second, rounds=10**4)
""",
        nursery=nursery,
    )


def test_towers_under_device_blocks_are_one_model(nursery: Nursery) -> None:
    run(
        SETUP
        + """
rng = np.random.default_rng(0)
params = {"w": rng.standard_normal((4, 2)).astype(np.float32), "b": np.zeros(2, np.float32)}
batch = rng.standard_normal((6, 4)).astype(np.float32)
gradients = jax.jit(jax.grad(lambda params, rows: jnp.mean((rows @ params["w"] + params["b"] - 1) ** 2)))
towers = []
for index, rows in enumerate(np.split(batch, 3)):
    with sg.device(f"/cpu:{index}"):
        towers.append(gradients(params, rows))
assert ids(towers) == [{"w": [index], "b": [index]} for index in range(3)]
mean = sg.average_gradients(towers)
for name, whole in gradients(params, batch).items():
    np.testing.assert_allclose(mean[name], whole, rtol=1e-5)
pairs = sg.average_gradients([[(tower["w"], "w"), (None, "b")] for tower in towers])
np.testing.assert_allclose(pairs[0][0], mean["w"])
assert pairs[1] == (None, "b")
""",
        nursery=nursery,
    )


def test_parts_of_a_model_on_their_own_devices(nursery: Nursery) -> None:
    run(
        SETUP
        + """
rng = np.random.default_rng(0)
def lower(w, x): return jnp.tanh(x @ w)
def upper(w, h, y): return jnp.mean((h @ w - y) ** 2)
whole = {"lower": rng.standard_normal((4, 8)).astype(np.float32), "upper": rng.standard_normal((8, 2)).astype(np.float32)}
x, y = rng.standard_normal((5, 4)).astype(np.float32), rng.standard_normal((5, 2)).astype(np.float32)

with sg.device("/cpu:1"):
    lower_part, put_lower = sg.on_device(lower), sg.on_device(lambda value: value)
upper_part = sg.on_device(upper, "/cpu:2")
params = {"lower": put_lower(whole["lower"]), "upper": sg.on_device(lambda: jnp.asarray(whole["upper"]), "/cpu:2")()}
assert ids(params) == {"lower": [1], "upper": [2]}

def split_loss(params, x, y): return upper_part(params["upper"], lower_part(params["lower"], x), y)
@jax.jit
def whole_loss(params, x, y): return upper(params["upper"], lower(params["lower"], x), y)

# What the backward half computes is computed where the forward half was: all that lower's gradient is made of but
# the step from the upper to the lower device.
jaxpr = jax.make_jaxpr(jax.grad(split_loss))(whole, x, y).jaxpr
programs = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in ("jit", "pjit")]
places = [[device.id for device in eqn.params["out_shardings"][0]._device_assignment] for eqn in programs
          if hasattr(eqn.params["out_shardings"][0], "_device_assignment")]
assert len(programs) >= 3 and {place[0] for place in places} == {1, 2}, programs

optimizer = optax.adam(0.05)
def update(value, state, grad):
    changes, state = optimizer.update(grad, state, value)
    return optax.apply_updates(value, changes), state
updates = {"lower": sg.on_device(update, "/cpu:1"), "upper": sg.on_device(update, "/cpu:2")}
states = {name: optimizer.init(value) for name, value in params.items()}
whole_state, whole_update = optimizer.init(whole), jax.jit(update)
losses = []
for _ in range(20):
    loss, grads = jax.value_and_grad(split_loss)(params, x, y)
    reference, whole_grads = jax.value_and_grad(whole_loss)(whole, x, y)
    assert ids(loss) == [2] and ids(grads) == {"lower": [1], "upper": [2]}, ids(grads)
    np.testing.assert_allclose(loss, reference, rtol=1e-4)
    for name in grads:
        np.testing.assert_allclose(grads[name], whole_grads[name], rtol=1e-3, atol=1e-5)
        params[name], states[name] = updates[name](params[name], states[name], grads[name])
    whole, whole_state = whole_update(whole, whole_state, whole_grads)
    losses.append(float(loss))
assert ids(params) == {"lower": [1], "upper": [2]}
assert losses[-1] < losses[0] / 2

try:
    jax.jit(split_loss)(whole, x, y)
except ValueError as error:
    assert "incompatible devices" in str(error)
else:
    raise SystemExit("one program on two devices")
""",
        nursery=nursery,
    )


def test_parts_are_logged_and_missing_devices_named(nursery: Nursery) -> None:
    run(
        SETUP
        + """
import contextlib, io
def part(x): return x
try:
    sg.on_device(part, "/gpu:0")
except sg.DeviceNotFoundError as error:
    assert "no /device:GPU:0" in str(error)
else:
    raise SystemExit("there is a GPU")
try:
    sg.on_device(part, "/job:worker/task:1")
except sg.DeviceNotFoundError as error:
    assert "a Session reaches" in str(error)
else:
    raise SystemExit("there is a worker")
sg.configure(soft_placement=True, log_device_placement=True)
with contextlib.redirect_stderr(io.StringIO()) as log:
    assert ids(sg.on_device(part, "/gpu:1")(1.0)) == [0]
    sg.on_device(part, "/cpu:2", name="upper")
lines = log.getvalue().splitlines()
assert "Device mapping:" in lines and lines[-2:] == [
    "part: (Program): /job:localhost/replica:0/task:0/device:CPU:0",
    "upper: (Program): /job:localhost/replica:0/task:0/device:CPU:2",
], lines
""",
        nursery=nursery,
    )


def test_clones_compute_on_their_devices_and_variables_stay_on_theirs(nursery: Nursery) -> None:
    run(
        SETUP
        + """
import itertools
rows = np.random.default_rng(0).standard_normal((2, 8, 3)).astype(np.float32)

def model_fn(scope, x):
    w = scope.variable("w", (3,))
    scope.variable("mean", (3,), trainable=False)
    scope.add_update("mean", x.mean(axis=0))
    scope.add_loss(((x @ w - x.sum(axis=1)) ** 2).mean())
    return x @ w

config = sg.deploy.DeploymentConfig(num_clones=2, clone_devices=["/cpu:1", "/cpu:2"])
model = sg.deploy.deploy(config, model_fn, [itertools.cycle(rows)], optimizer=optax.sgd(0.1, momentum=0.5))
variables = model.clones[0].variables
assert {variable.device for variable in variables.values()} == {"/job:localhost/replica:0/task:0/device:CPU:0"}
first = float(model.total_loss())
losses = [float(model.train_op()) for _ in range(60)]
assert losses[0] == first and losses[-1] < 1e-4 < first, losses
np.testing.assert_allclose(variables["w"].read(), [1, 1, 1], atol=0.02)
np.testing.assert_allclose(variables["mean"].read(), rows[0].mean(axis=0), rtol=1e-5)
assert all(ids(variable.value) == [0] for variable in variables.values())
assert [ids(clone.run()) for clone in model.clones] == [[1], [2]]
assert [ids(sg.deploy.gather_clone_loss(clone, 2, None)) for clone in model.clones] == [[1], [2]]
assert ids(model.total_loss()) == [0]
total, ((gradient, variable),) = sg.deploy.optimize_clones(model.clones)
assert ids((total, gradient)) == ([0], [0]) and variable.name == "w"
""",
        nursery=nursery,
    )
