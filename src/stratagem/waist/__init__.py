"""Where models and strategies meet: small interfaces over flat lists of arrays.

A front (plain functions, Keras, Flax) makes a `Trainable` and an `Updater`; a strategy trains them. Neither knows the
other. A map:

    interfaces                  `Trainable`, a model and its loss, and `Updater`, an optimizer
    state, home                 what training changes, and how; where it lives meanwhile: here, with workers, on servers
    loss_functions, optimizers  plain loss functions as trainables, and optax optimizers as updaters
    user_functions              checks of what users' functions take and return
    averages                    of gradients over towers, and of parameters over time
"""

from stratagem.waist.averages import ExponentialMovingAverage as ExponentialMovingAverage
from stratagem.waist.averages import average_gradients as average_gradients
from stratagem.waist.interfaces import Arrays as Arrays
from stratagem.waist.interfaces import Kind as Kind
from stratagem.waist.interfaces import Metrics as Metrics
from stratagem.waist.interfaces import Trainable as Trainable
from stratagem.waist.interfaces import Updater as Updater
from stratagem.waist.loss_functions import FunctionTrainable as FunctionTrainable
from stratagem.waist.optimizers import Keys as Keys
from stratagem.waist.optimizers import OptaxUpdater as OptaxUpdater
from stratagem.waist.state import Recipe as Recipe
from stratagem.waist.state import TrainState as TrainState
from stratagem.waist.state import new_state as new_state
from stratagem.waist.state import state_of as state_of
