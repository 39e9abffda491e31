"""The gateway as a program: `python -I -m atoll.network FD`."""

from atoll.network.gateway import main

if __name__ == "__main__":
    main()
