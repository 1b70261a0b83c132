"""Variables that live on parameter servers: how they are cut, kept, updated and reached.

A map, from the outside in:

    link                       a worker's end: brings models, pushes, pulls
    delivery, asked            one push on its way to all servers; where the parameters that a server sends come to lie
    tie, meetings              joining, calling and coming back to servers; what workers show and tell each other
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
