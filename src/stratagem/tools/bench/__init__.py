"""Which strategy suits this machine: the contenders of `stratagem bench`, what they reached, and what follows from it."""
