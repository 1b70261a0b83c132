"""The Estimator: a model function, a directory, and who trains where; TensorFlow's interface, on every strategy.

A map, from the outside in:

    canned, optimizers  LinearRegressor and DNNClassifier; optimizers by name
    together            train_and_evaluate: who does what, alone and on a cluster
    watching, signs     when the evaluator evaluates, and how it and the chief learn of each other
    estimator           Estimator: train, evaluate, predict
    loop, reports       the training loop; what is written and said of it
    measuring, variables  evaluation and prediction; what a checkpoint holds
    model, inputs       a model function and an input function, called and checked
    spec, config, specs, hooks   what a user fills in
    checks, returned    checks of that, each with its message
"""

from stratagem.classic.estimator.canned import DNNClassifier as DNNClassifier
from stratagem.classic.estimator.canned import LinearRegressor as LinearRegressor
from stratagem.classic.estimator.config import RunConfig as RunConfig
from stratagem.classic.estimator.estimator import Estimator as Estimator
from stratagem.classic.estimator.hooks import Hook as Hook
from stratagem.classic.estimator.spec import EstimatorSpec as EstimatorSpec
from stratagem.classic.estimator.spec import ModeKeys as ModeKeys
from stratagem.classic.estimator.specs import EvalSpec as EvalSpec
from stratagem.classic.estimator.specs import TrainSpec as TrainSpec
from stratagem.classic.estimator.together import train_and_evaluate as train_and_evaluate
