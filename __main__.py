"""Run the command line, as ``python -m cuda_cyclegan`` or by its own name."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until a command hears it, Ctrl-C ends the program without a traceback: the imports below too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from cuda_cyclegan.cli.app import main

if __name__ == "__main__":
    main()
