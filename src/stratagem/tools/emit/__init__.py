"""Files that start a cluster elsewhere, rendered from one description of the job. Pure: a job in, text out. No JAX.

A map:

    job          the description: the cluster's shape, the script, its name, restarts and grace
    compose      a compose file
    kubernetes   Kubernetes objects: indexed Jobs, or Kubeflow's TFJob
    slurm        a batch script for Slurm
    slurm_task   the program that each task of that script runs
    rendering    YAML and comments
"""

from stratagem.tools.emit.compose import compose_file as compose_file
from stratagem.tools.emit.job import ClusterShape as ClusterShape
from stratagem.tools.emit.job import Job as Job
from stratagem.tools.emit.kubernetes import Pods as Pods
from stratagem.tools.emit.kubernetes import kubernetes_file as kubernetes_file
from stratagem.tools.emit.kubernetes import tfjob_file as tfjob_file
from stratagem.tools.emit.slurm import Resources as Resources
from stratagem.tools.emit.slurm import slurm_script as slurm_script
