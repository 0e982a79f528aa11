"""`python -m gpuproof` is the `gpuproof` command; under a user's torchrun it is how each rank starts."""

from gpuproof.cli.main import main

if __name__ == "__main__":
    main()
