"""What the scripts of these tests begin with."""

PRELUDE = '''
import json, os, signal, sys, time
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np, optax
import stratagem as sg
from drills import task_messages
from drills.counting_task import BATCH, initial, loss_fn, optimizer, summary
from drills.task_messages import tell

def wait_for(name):
    task_messages.wait_for(Path(__file__).with_name(name))

def until_there(name):
    """Goes on until the file is there, at a pace that leaves the processor to others."""
    while not Path(__file__).with_name(name).exists():
        yield
        time.sleep(0.01)

def start(**options):
    strategy = sg.ParameterServerStrategy(**options)
    return strategy, strategy.init(initial(), optimizer()), strategy.train_step(loss_fn)
'''
