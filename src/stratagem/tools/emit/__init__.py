"""What starts a cluster elsewhere: a compose file, Kubernetes objects, a Slurm script, from one description of the job.

Renderers are pure: a job in, text out. No JAX here.
"""

from stratagem.tools.emit.compose import compose_file as compose_file
from stratagem.tools.emit.job import Job as Job
from stratagem.tools.emit.kubernetes import kubernetes_file as kubernetes_file
from stratagem.tools.emit.pod import Pods as Pods
from stratagem.tools.emit.shape import ClusterShape as ClusterShape
from stratagem.tools.emit.slurm import Resources as Resources
from stratagem.tools.emit.slurm import slurm_script as slurm_script
from stratagem.tools.emit.tfjob import tfjob_file as tfjob_file
