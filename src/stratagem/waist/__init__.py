"""Where fronts and strategies meet: two small interfaces over flat lists of arrays.

A front (plain functions, Keras, Flax) makes a `Trainable` and an `Updater`; a strategy trains them. Neither
knows the other.
"""

from stratagem.waist.averages import average_gradients as average_gradients
from stratagem.waist.ema import ExponentialMovingAverage as ExponentialMovingAverage
from stratagem.waist.functions import FunctionTrainable as FunctionTrainable
from stratagem.waist.interfaces import Arrays as Arrays
from stratagem.waist.interfaces import Kind as Kind
from stratagem.waist.interfaces import Metrics as Metrics
from stratagem.waist.interfaces import Trainable as Trainable
from stratagem.waist.interfaces import Updater as Updater
from stratagem.waist.keys import Keys as Keys
from stratagem.waist.optimizers import OptaxUpdater as OptaxUpdater
from stratagem.waist.state import Recipe as Recipe
from stratagem.waist.state import TrainState as TrainState
from stratagem.waist.state import new_state as new_state
from stratagem.waist.state import state_of as state_of
