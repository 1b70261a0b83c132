"""Sums, gathers and broadcasts between the worker processes of a synchronous strategy, over the runtime's wire.

A map, from the outside in:

    group                      what a strategy uses
    members                    who the workers are, what they agree on, and how to call them
    exchange                   operations as swaps of messages, and the connections that carry them
    liveness, rendezvous       watching each other, failures and farewells; finding each other at the start
    group_state                decides: which operation each worker is in, and what differs
    group_failure              why the group cannot go on, in words
    sum_layout, summation      where each array lies in a message, and who sums which part; the sums themselves
"""

from stratagem.collectives.group import Group
from stratagem.collectives.members import GroupOptions

__all__ = ["Group", "GroupOptions"]
