"""What a training loop has around it: summaries, progress, checkpoints."""

from stratagem.training.progress import Progress as Progress
from stratagem.training.progress import progress as progress
from stratagem.training.summaries import SummaryWriter as SummaryWriter
