"""Engines: how a strategy works. An engine lays a state over devices, and builds the step that trains it.

A map, from the general to the special:

    engine                        the interface of engines, and what compiled steps share
    workers                       the interface of the processes that train together; one that trains alone
    feeds, rows                   how batches reach workers; which rows are whose
    replicas, meshes              the devices of this process, and those of all workers, with values laid over them
    per_replica                   values that each replica has one of: run, reduce and gather by hand
    local_engines                 variables with this process: mirrored, central, in shards, or only to evaluate with
    multi_worker_engine           workers in step that sum through their group
    mesh_engine                   workers in step for which XLA sums, in one program over the devices of all
    steps_under_way               steps in which XLA waits for other workers, given up when one is lost
    jax_distributed               starts `jax.distributed` between workers
    contributions                 what each worker in step contributes to an update; the forms of batches and metrics
    group_workers                 workers in step, which reach each other through a group
    common_start                  checks that workers begin with the same model and the same optimizer
    parameter_server_engine       variables on parameter servers, gradients from workers that each run the script
    server_model, server_workers  one such model, and its workers and their batches, as one worker sees them
    in_graph, in_graph_model      variables on parameter servers, and one client that drives all workers
    worker_pool                   the workers that this client drives, and its calls in the background
    server_steps                  what steps over parameter servers share, whoever runs them
    table_trainables              models that look rows of tables up
    local_tables                  rows of tables with this process, and steps that train them
    row_prefetch                  rows of tables on parameter servers, fetched before they are needed
    chief_files                   files that every worker saves and only the chief writes
    cluster_tasks                 which task this process is, which train, and which jobs a strategy lacks or leaves idle
    fronts                        the libraries whose models strategies train
    tensorflow_names              arguments that have another name in TensorFlow
"""
