"""Variables that live on parameter servers: how they are cut, kept, updated and reached.

A map, from the outside in:

    client                     a worker's client of the servers: joins, comes back after losses, pushes, pulls, keeps
    push                       a push while it is under way, what servers answer, and its outcome
    rendezvous                 what workers show and tell each other by way of server 0
    planning, partition        a model over servers as every worker plans it: who holds what, what is shipped
    server_rows                tables on the servers, as a worker plans and sees them
    split                      an optimizer's update, cut into one function for each server
    service, pushes            the calls that a server answers; what it does with a push
    leader                     server 0's shell, which carries out what the core decides; how other servers ask it
    part, store                one server's part of a model: its programs, its values and pushes
    snapshot_writer            its shards of snapshots and checkpoints on disk
    versions                   its values, version by version, for readers near and far
    table_part, table_base     its rows of tables; all of them in files, for snapshots of differences
    row_updates                an optimizer's update of the rows of a table
    averaging                  the mean of several pushes and the update that it makes, as one program
    model_core                 the pure core: the states of a model, and everything that server 0 decides about it
    authority                  the part of it that decides who takes part, and follows the update rule
    snapshot_schedule          the part that decides when snapshots are due, and which may be committed
    exchanges, agreements      the part that keeps what workers show each other; which values they evaluate
    rules                      update rules, and the state machines that decide by them which pushes make an update
    config, protocol           a model as a server has to know it, and the words in which both sides talk
"""
