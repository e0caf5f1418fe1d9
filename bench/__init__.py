"""Measurements; each module is a program."""

import os

# As the program does, before gRPC is loaded: see slackwater.cli.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
