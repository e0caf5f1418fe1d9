"""Real servers for the tests; what is missing fails them with a message that says how to get it."""

import os

# As the program does, before gRPC is loaded: see slackwater.cli.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

pytest_plugins = ["tests.postgres", "tests.emulators", "tests.spark.sessions", "tests.stores"]

# The tests' JVMs live for seconds: what they would compile twice and collect side by side takes
# longer than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
