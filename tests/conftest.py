"""Real servers for the tests; what is missing fails them with a message that says how to get it."""

pytest_plugins = ["tests.postgres", "tests.emulators", "tests.spark.sessions"]
