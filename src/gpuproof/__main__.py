"""`python -m gpuproof` is the `gpuproof` command; it imports nothing from the working directory.

A gpuproof/ folder in that directory would run instead, before this module starts. In a folder that belongs to
someone else, run `gpuproof` itself, or `python -P -m gpuproof`.
"""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # the directory may contain a click.py
        del sys.path[0]
    try:
        from gpuproof.cli.main import main
    except ModuleNotFoundError as error:
        from gpuproof.base.errors import explained

        unfit = explained(error)
        if unfit is None:
            raise
        sys.stderr.write(f"gpuproof: {unfit}\n")
        sys.exit(unfit.exit_code)
    main()
