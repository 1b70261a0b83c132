"""How each source of a cluster calls its parts, so that one set of rules can point at the wrong part.

The rules of `jobs` and `roles` hold for every source; their messages say `TF_CONFIG["task"]["index"]` to
one user and `--task_index` to the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratagem.errors import ClusterError


@dataclass(frozen=True)
class Names:
    """The names of the parts of a cluster in one source.

    Attributes:
        jobs: what a job's list of addresses is called, with `{job}` for the job's name.
        job_name: what the name of this task's job is called.
        task_index: what this task's index is called.
        example: the right form, shown at the end of every message.
        spelling: how the source spells the jobs that it calls otherwise than we do.
    """

    jobs: str
    job_name: str
    task_index: str
    example: str
    spelling: Mapping[str, str] = field(default_factory=dict)

    def job(self, job: str) -> str:
        """What the addresses of `job` are called."""
        return self.jobs.replace("{job}", self.spelling.get(job, job))

    def task(self, job: str, index: object) -> str:
        """What the address of one task is called."""
        return f"{self.job(job)}[{index}]"

    def error(self, problem: str) -> ClusterError:
        """The error to raise: the problem, then the right form."""
        stop = "" if problem.endswith(("?", ".")) else "."
        return ClusterError(f"{problem}{stop} The right form: {self.example}")


SPEC = Names(
    jobs='cluster["{job}"]',
    job_name="job_name",
    task_index="task_index",
    example='ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {0: "c:2222"}})',
)
CONFIG = Names(
    jobs='cluster["{job}"]',
    job_name="job_name",
    task_index="task_index",
    example='ClusterConfig(ClusterSpec({"worker": ["a:2222", "b:2222"]}), job_name="worker", task_index=0)',
)
