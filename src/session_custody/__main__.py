"""`python -m session_custody` is the command `custody`."""

from session_custody.cli import main

main()
