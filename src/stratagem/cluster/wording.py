"""The words of each source for the parts of a cluster, so that one set of rules can name the wrong part.

The rules of `cluster_spec` and `roles` hold for every source; their messages say `TF_CONFIG["task"]["index"]` to
one user and `--task_index` to the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratagem.errors import ClusterError


@dataclass(frozen=True)
class Wording:
    """One source's names for the parts of a cluster.

    Attributes:
        jobs: The name of a job's list of addresses, with `{job}` for the job.
        job_name: The name of the setting for this task's job.
        task_index: The name of the setting for this task's index.
        example: The right form, shown at the end of every message.
        spelling: The source's names of jobs, where they differ from ours.
    """

    jobs: str
    job_name: str
    task_index: str
    example: str
    spelling: Mapping[str, str] = field(default_factory=dict)

    def job(self, job: str) -> str:
        """Return the name of a job's addresses."""
        return self.jobs.replace("{job}", self.spelling.get(job, job))

    def task(self, job: str, index: object) -> str:
        """Return the name of one task's address."""
        return f"{self.job(job)}[{index}]"

    def error(self, problem: str) -> ClusterError:
        """Return the error to raise: the problem, then the right form."""
        stop = "" if problem.endswith(("?", ".")) else "."
        return ClusterError(f"{problem}{stop} The right form: {self.example}")


SPEC = Wording(
    jobs='cluster["{job}"]',
    job_name="job_name",
    task_index="task_index",
    example='ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {0: "c:2222"}})',
)
CONFIG = Wording(
    jobs='cluster["{job}"]',
    job_name="job_name",
    task_index="task_index",
    example='ClusterConfig(ClusterSpec({"worker": ["a:2222", "b:2222"]}), job_name="worker", task_index=0)',
)
