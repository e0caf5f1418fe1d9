"""The main file of a SparkApplication: Spark starts a driver in Python only from a .py file."""

from slackwater.cli import main

main()
