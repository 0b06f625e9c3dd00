"""Run the command line as ``python -m cuda_cyclegan``."""

from cuda_cyclegan.cli.app import main

main()
