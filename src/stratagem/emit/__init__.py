"""What starts a cluster elsewhere: a compose file, Kubernetes objects, a Slurm script, from one description of the job.

Renderers are pure: a job in, text out. No JAX here.
"""

from stratagem.emit.compose import compose_file as compose_file
from stratagem.emit.job import Job as Job
from stratagem.emit.kubernetes import kubernetes_file as kubernetes_file
from stratagem.emit.pod import Pods as Pods
from stratagem.emit.shape import ClusterShape as ClusterShape
from stratagem.emit.slurm import Resources as Resources
from stratagem.emit.slurm import slurm_script as slurm_script
from stratagem.emit.tfjob import tfjob_file as tfjob_file
