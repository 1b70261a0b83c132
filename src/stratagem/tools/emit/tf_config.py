"""TF_CONFIG of a task, as text."""

import json

from stratagem.cluster import ClusterSpec


def tf_config(cluster: ClusterSpec, job: str, index: int | str) -> str:
    """The JSON that tells a task who it is.

    Args:
        cluster: All tasks, but for the evaluator.
        job: This task's job.
        index: This task's index, or text that stands for it and is replaced by a number before JSON is read.

    Example:
        >>> tf_config(ClusterSpec({"worker": ["a:1", "b:1"]}), "worker", 1)
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    """
    jobs = json.dumps(cluster.as_dict())
    return f'{{"cluster": {jobs}, "task": {{"type": {json.dumps(job)}, "index": {index}}}}}'
