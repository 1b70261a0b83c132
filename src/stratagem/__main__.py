"""`python -m stratagem` is the `stratagem` command."""

from stratagem.launch.cli import main

main()
