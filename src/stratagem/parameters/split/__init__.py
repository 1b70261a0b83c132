"""Cuts an optimizer's update into one function for each parameter server, and never wrongly.

`analyse` traces the update once. Its `Plan` says which slots belong to which variable, which variables may be
cut along axis 0, and what they share; `Plan.part` gives each server its own traceable update.
"""

from stratagem.parameters.split.analysis import MOST_ELEMENTS as MOST_ELEMENTS
from stratagem.parameters.split.analysis import analyse as analyse
from stratagem.parameters.split.tracing import Update as Update
from stratagem.parameters.split.update_plan import KeptSlot as KeptSlot
from stratagem.parameters.split.update_plan import Part as Part
from stratagem.parameters.split.update_plan import Piece as Piece
from stratagem.parameters.split.update_plan import Plan as Plan
