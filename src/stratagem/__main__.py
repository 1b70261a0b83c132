"""`python -m stratagem` is the `stratagem` command."""

from stratagem.tools.launch.cli import main

main()
