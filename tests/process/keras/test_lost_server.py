"""A parameter server that dies for good while Keras trains: the weights learned till then are not lost."""

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker

PRELUDE = """
import json, os, select, signal, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
import stratagem as sg
from unit.keras.cases import Blocks, X, Y, dense

def tell(**words):
    print("told:", json.dumps(words), flush=True)

def made(scope):
    keras.utils.set_random_seed(1)
    with scope:
        model = dense()
        model.compile(keras.optimizers.SGD(0.3), "mse")
    return model

def kill_server(batch, logs):
    if batch == 1:
        server = os.pidfd_open(int(sys.argv[1]))
        signal.pidfd_send_signal(server, signal.SIGKILL)
        assert select.select([server], [], [], 60)[0], "the server does not end"
"""


def test_weights_are_the_last_ones(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        from contextlib import nullcontext
        strategy = sg.ParameterServerStrategy(rejoin_timeout=1)
        model = made(strategy.scope())
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=kill_server)]
        try:
            model.fit(Blocks(X, Y), epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        except sg.StratagemError as error:
            plain = made(nullcontext())
            plain.fit(Blocks(X, Y, sizes=(8, 8)), shuffle=False, verbose=0)
            differences = [
                float(abs(mine - other).max())
                for mine, other in zip(model.get_weights(), plain.get_weights(), strict=True)
            ]
            tell(error=str(error), difference=max(differences))
            evaluated = model.evaluate(X, Y, verbose=0)
            tell(evaluated=evaluated, expected=plain.evaluate(X, Y, verbose=0))
        os._exit(7)  # there is nobody to take leave of
    """)
    job = new_job(1, 1)
    server = job.serve(0)
    worker = job.start("worker", 0, path, server.pid)
    assert worker.ends() == 7
    failed, evaluated = worker.results()
    assert "no snapshots that they could come back from" in failed["error"]
    assert failed["difference"] < 1e-6
    assert abs(evaluated["evaluated"] - evaluated["expected"]) < 1e-6
