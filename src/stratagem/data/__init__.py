"""Data for training: files in, batches out."""

from stratagem.data.digits import Digits as Digits
from stratagem.data.digits import load_digits as load_digits
