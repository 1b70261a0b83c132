"""Variables that live on parameter servers: how they are cut, stored, updated and reached.

A map, from the outside in:

    push                       a worker's training: pushes, what comes of them, pulls
    client                     a worker's client of the servers: joins, comes back after losses, reads, sets, keeps values
    rendezvous                 where workers meet by way of server 0: gathers, notes, values that all evaluate
    planning, partition        a model over servers as every worker plans it: who holds what, what is shipped
    served_tables              tables on the servers, as a worker plans and sees them
    row_updates                an optimizer's update of the rows of a table
    split                      an optimizer's update, cut into one function for each server
    service, pushes            the calls that a server answers; its side of a push
    leader                     server 0's shell, which carries out what the core decides; how other servers ask it
    part                       one server's part of a model: its programs, its shards of snapshots and checkpoints
    store, versions            its values and the pushes that wait; the values version by version, and their update
    table_part                 its rows of tables, also in files, for snapshots of differences
    model_core                 the pure core: the states of a model, and everything that server 0 decides about it
    authority                  the part of the core that decides who takes part, which pushes count, when to snapshot
    exchanges                  the part of the core that keeps what workers show each other
    rules                      update rules, and the state machines by which they decide which pushes make an update
    protocol                   the words in which both sides talk, and a model as a server has to know it
"""
