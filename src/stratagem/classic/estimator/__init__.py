"""The Estimator: a model function and a directory, under any strategy, with TensorFlow's interface.

A map, from the outside in:

    canned             LinearRegressor and DNNClassifier; optimizers by name
    train_evaluate     train_and_evaluate: the role of each task, alone and on a cluster
    evaluator          the evaluator task: when it evaluates, and how it and the chief learn of each other
    estimator          Estimator: train, evaluate, predict
    training_loop      the loop of one training, its checkpoints and its summaries
    model_function     a model function, called and checked; evaluation and prediction with it
    input_function     an input function, called and checked
    checkpoint_reader  parameters and variables, read from checkpoints
    estimator_specs    what a user fills in: RunConfig, EstimatorSpec, TrainSpec, EvalSpec, Hook
"""

from stratagem.classic.estimator.canned import DNNClassifier as DNNClassifier
from stratagem.classic.estimator.canned import LinearRegressor as LinearRegressor
from stratagem.classic.estimator.estimator import Estimator as Estimator
from stratagem.classic.estimator.estimator_specs import EstimatorSpec as EstimatorSpec
from stratagem.classic.estimator.estimator_specs import EvalSpec as EvalSpec
from stratagem.classic.estimator.estimator_specs import Hook as Hook
from stratagem.classic.estimator.estimator_specs import ModeKeys as ModeKeys
from stratagem.classic.estimator.estimator_specs import RunConfig as RunConfig
from stratagem.classic.estimator.estimator_specs import TrainSpec as TrainSpec
from stratagem.classic.estimator.train_evaluate import train_and_evaluate as train_and_evaluate
