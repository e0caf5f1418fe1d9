"""Spark's settings for the sinks in use, with the packages to fetch."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pyspark

from slackwater.pipeline.spark.class_path import JOINED, PACKAGES, jar_names, names_of
from slackwater.spark_sink.output.hadoop_connectors import CONNECTORS, Connector
from slackwater.spark_sink.sinks.registry import spark_confs

_BY_NAME: Final = {connector.name: connector for connector in CONNECTORS}


def needed(
    names: Collection[str], conf: Mapping[str, str], folder: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings that sinks need, with their lists joined.

    Args:
        names: those of registry.spark_confs() that the sinks need; others need nothing. Nothing is
            returned for a connector that the user replaces, and configures, on their own.
        conf: the user's settings of Spark.
        folder: one with jars, of the setting spark.jars.
        environ: of this process.
    """
    confs, together = spark_confs(), dict[str, str]()
    brought = {connector.name for connector in brought_connectors(conf, folder, environ)}
    for name in sorted((set(names) & confs.keys()) - brought):
        values = dict(confs[name](pyspark.__version__))
        if name in _BY_NAME:
            values |= _BY_NAME[name].credentials(environ)
        for key, value in values.items():
            is_joined = key in JOINED and key in together
            together[key] = f"{together[key]},{value}" if is_joined else value
    return together


def brought_connectors(
    conf: Mapping[str, str], folder: str | None, environ: Mapping[str, str]
) -> tuple[Connector, ...]:
    """Return the connectors that the user replaces; arguments as for needed()."""
    # A class path may name the folder, too.
    names = jar_names(conf, None, environ)
    own = [name for name in names if folder is None or Path(name).parent != Path(folder)]
    return tuple(connector for connector in CONNECTORS if connector.is_brought(conf, own))


def all_jars(
    names: Collection[str], conf: Mapping[str, str], folder: str | None, environ: Mapping[str, str]
) -> list[str]:
    """Return the names of the jars that Spark will find or fetch for object stores.

    Args:
        names, conf, folder, environ: see needed().
    """
    there = jar_names(conf, folder, environ)
    if folder is not None:
        return there
    connectors = needed(set(names) & _BY_NAME.keys(), conf, folder, environ)
    return [*there, *names_of(connectors, PACKAGES)]
