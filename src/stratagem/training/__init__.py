"""Around a training loop: summaries, progress, checkpoints.

A map:

    checkpoints         Checkpointer: save and restore the state of a training
    checkpoint_files    the checkpoints in one directory
    checkpoint_restore  a checkpoint that the chief has read, brought to all workers or to the servers
    state_arrays        a state as named host arrays, and back
    preemption          SIGTERM, noted so that there is time to save
    progress            progress: batches, with a display of how training goes
    progress_display    the display: a bar or lines, and the speed that it shows
    summaries           SummaryWriter: metrics, histograms, images and tables for TensorBoard
    summary_values      histograms, PNG images and Markdown tables, made of arrays and mappings
    event_file          TensorBoard's file format
    cluster_status      the status of a cluster as lines and as figures
    reporter            which process of a job writes and prints for all
"""

from stratagem.training.progress import Progress as Progress
from stratagem.training.progress import progress as progress
from stratagem.training.summaries import SummaryWriter as SummaryWriter
