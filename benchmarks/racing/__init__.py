"""What all races between contenders have in common: the work, the processes, the rounds and the report."""
