"""Two workers, each with batches of its own, one with fewer than the other; both evaluate what they have trained.

own_data_job.py ParameterServerStrategy|MultiWorkerMirroredStrategy --model_dir DIRECTORY
"""

import json
import sys
from pathlib import Path
from typing import Any

import stratagem as sg
from unit.classic.estimator import models


def own_batches(input_context: sg.InputContext) -> list[Any]:
    worker, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
    return [(models.X[worker::workers], models.Y[worker::workers])] * (2 + worker)


if __name__ == "__main__":
    maker = getattr(sg, sys.argv[1])
    estimator = models.estimator(Path(sys.argv[-1]), train_distribute=maker, eval_distribute=maker)
    estimator.train(own_batches)
    predicted = [float(row["y"]) for row in estimator.predict(models.test_batches)]
    print(json.dumps({**estimator.evaluate(models.test_batches), "predicted": sum(predicted)}))
