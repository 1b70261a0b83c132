"""Two workers, each with batches of its own, one with fewer than the other; both evaluate what they have trained.

own_data_job.py --model_dir DIRECTORY
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import stratagem as sg
from unit.estimator import models

strategy = cache(sg.MultiWorkerMirroredStrategy)  # one, to train with and to evaluate with


def own_batches(input_context: sg.InputContext) -> list[Any]:
    worker, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
    return [(models.X[worker::workers], models.Y[worker::workers])] * (2 + worker)


if __name__ == "__main__":
    estimator = models.estimator(Path(sys.argv[-1]), train_distribute=strategy, eval_distribute=strategy)
    estimator.train(own_batches)
    print(json.dumps(estimator.evaluate(models.test_batches)))
