"""Variables that live on parameter servers: how they are cut, kept, updated and reached.

A map, from the outside in:

    client                     a worker's client of the servers: joins, comes back after losses, pushes, pulls, keeps
    push, responses            a push while it is under way, and its outcome; what servers answer a worker
    rendezvous                 what workers show and tell each other by way of server 0
    planning, partition        a model over servers as every worker plans it: who holds what, what is shipped
    split                      an optimizer's update, cut into one function for each server
    service, pushes            the calls that a server answers; what it does with a push
    leader, fellows, follower  server 0, which decides for all; how it calls all servers; how the others hear of it
    bulletin, snapshots        what workers leave with server 0 for one another; cuts of one model over all servers
    part, store, cutting       one server's part of a model: values and pushes, cuts on disk
    versions                   its values, version by version, for readers near and far
    averaging                  the mean of several pushes and the update that it makes, as one program
    authority, machines        deciding: who takes part, which pushes make which update
    gatherings, agreements     what workers show each other; of which values they evaluate
    rules, config, protocol    the user's wishes, and the words in which both sides talk
    locks                      many readers, one writer
"""
