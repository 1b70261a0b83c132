"""Variables that live on parameter servers: how they are cut, kept, updated and reached.

A map, from the outside in:

    link                       a worker's end: brings models, pushes, pulls, comes back after losses
    planning, partition        a model over servers as every worker plans it: who holds what, what is shipped
    split                      an optimizer's update, cut into one function for each server
    service, pushes            the calls that a server answers; what it does with a push
    leader, follower           server 0, which decides for all; and how the others hear of it
    part, store, cutting       one server's part of a model: values and pushes, versions, cuts on disk
    authority, machines        deciding: who takes part, which pushes make which update
    gatherings                 what workers show each other
    rules, config, protocol    the user's wishes, and the words in which both sides talk
    locks                      many readers, one writer
"""
