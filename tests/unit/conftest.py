"""What unit tests compile is compiled quickly; XLA must be told before it is first used."""

import os

from drills.quick_compiling import QUICKLY

os.environ.update(QUICKLY)
