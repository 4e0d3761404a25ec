"""``python -m kgen``, where the console script is not on the path."""

from kgen.cli import main

main()
