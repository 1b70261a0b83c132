"""One module per place a cluster can be read from; `stratagem.cluster.resolve` knows their order.

A map, in that order:

    flags        the command line, as in TensorFlow's distributed scripts
    tf_config    TF_CONFIG
    kubeflow     Kubeflow's JAXJob and Trainer
    slurm        a step of several tasks
    open_mpi     several ranks on one host
    numbers      whole numbers in variables and flags
"""
