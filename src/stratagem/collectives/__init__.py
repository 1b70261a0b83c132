"""Sums, gathers and broadcasts between the worker processes of a synchronous strategy, over the runtime's wire.

A map, from the outside in:

    group, options             what a strategy uses
    exchange                   carrying out rounds: sending parts, answering those that come
    bonds, meeting, callers    meeting, watching each other, telling of failures, leaving
    members                    who they are, and how to call them
    ledger, rounds, tickets    deciding: who is where, whose part has come, what differs
    failures                   why it cannot go on, in words
    layout, chunks, specs      what lies where, and who sums which part of it
    packing, results, sums     the arrays themselves
    xla                        the same sums by XLA's own collectives
"""

from stratagem.collectives.group import Group
from stratagem.collectives.members import PeerSource, Registrar
from stratagem.collectives.options import GroupOptions

__all__ = ["Group", "GroupOptions", "PeerSource", "Registrar"]
