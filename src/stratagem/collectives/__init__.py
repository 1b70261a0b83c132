"""Sums, gathers and broadcasts between the worker processes of a synchronous strategy, over the runtime's wire.

A map, from the outside in:

    group, options             what a strategy uses
    exchange, lines            operations as swaps of messages, and the connections for them
    bonds, meeting             meeting, watching each other, telling of failures, leaving
    members                    who they are, and how to call them
    ledger, tickets            deciding: who is where, and what differs
    failures                   why it cannot go on, in words
    layout, chunks, specs      what lies where, and who sums which part of it
    packing, sums              the arrays themselves
"""

from stratagem.collectives.group import Group
from stratagem.collectives.members import PeerSource, Registrar
from stratagem.collectives.options import GroupOptions

__all__ = ["Group", "GroupOptions", "PeerSource", "Registrar"]
