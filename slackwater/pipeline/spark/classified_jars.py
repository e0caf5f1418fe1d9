"""Jars that Maven has under a classifier, which spark.jars.packages does not support.

They are fetched by the Ivy that Spark brings, into the folder where Spark keeps the others, and
become jars of spark.jars.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

import pyspark

from slackwater.errors import SparkFailedError
from slackwater.pipeline.spark.class_path import JARS, PACKAGES, names_of
from slackwater.pipeline.spark.jar_cache import file_name, ivy_folder, locked
from slackwater.pipeline.spark.java import find_java

_FETCH_S_MAX: Final = 600
# As Spark's own settings of Ivy, with two exceptions. The description of a jar, of which nothing is
# needed, is not read: with its parents and what they import it can take minutes. And Maven's folder
# on this machine is left out: where that has only the description, Ivy looks no further.
_SETTINGS: Final = """<ivysettings>
<settings defaultResolver="all"/>
<resolvers><chain name="all">
{resolvers}
</chain></resolvers>
</ivysettings>
"""
_MODULE: Final = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="slackwater" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
<dependency org={group} name={name} rev={version} transitive="false"
 conf="default-&gt;master(default)">
<artifact name={name} type="jar" m:classifier={classifier}/>
</dependency>
</dependencies>
</ivy-module>
"""


def is_classified(package: str) -> bool:
    """Return whether coordinates are GROUP:ARTIFACT:VERSION:CLASSIFIER."""
    return package.count(":") == 3


def with_classified_jars(conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings with files in place of packages that have a classifier.

    Args:
        conf: the settings.
        environ: of this process; DEFAULT_ARTIFACT_REPOSITORY replaces Maven's, as in Spark.

    Raises:
        SparkFailedError: a jar can't be fetched.
        JavaNotFoundError: there is no Java to fetch it with.
    """
    packages = names_of(conf, PACKAGES)
    classified = [package for package in packages if is_classified(package)]
    if not classified:
        return dict(conf)
    files = [str(_jar(package, conf, environ)) for package in classified]
    lists = {
        JARS: [*names_of(conf, JARS), *files],
        PACKAGES: [package for package in packages if package not in classified],
    }
    others = {key: value for key, value in conf.items() if key not in lists}
    return others | {key: ",".join(names) for key, names in lists.items() if names}


def _jar(package: str, conf: Mapping[str, str], environ: Mapping[str, str]) -> Path:
    """Return a jar's file, which is fetched if it is not there."""
    folder = ivy_folder(conf.get("spark.jars.ivy"))
    file = folder / "jars" / file_name(package)
    if file.exists():
        return file
    try:
        with locked(folder):
            if not file.exists():
                _fetch(package, file, conf, environ)
    except (OSError, subprocess.SubprocessError) as error:
        raise _not_fetched(package, str(error)) from error
    return file


def _fetch(package: str, file: Path, conf: Mapping[str, str], environ: Mapping[str, str]) -> None:
    words = dict(zip(("group", "name", "version", "classifier"), package.split(":"), strict=True))
    module = _MODULE.format_map({word: quoteattr(value) for word, value in words.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    # In the same file system, so that the jar appears whole.
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        (Path(scratch) / "ivy.xml").write_text(module)
        options = ["-ivy", f"{scratch}/ivy.xml", "-settings", _settings(conf, environ, scratch)]
        options += ["-cache", str(file.parent.parent / "cache"), "-confs", "default"]
        command = [str(find_java(environ)), "-jar", str(_ivy(environ)), *options]
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [*command, "-retrieve", f"{scratch}/[artifact].[ext]"],
            capture_output=True,
            text=True,
            timeout=_FETCH_S_MAX,
            check=False,
        )
        jar = Path(scratch, f"{words['name']}.jar")
        if not jar.exists():
            raise _not_fetched(package, _warnings(done.stdout + done.stderr))
        jar.rename(file)


def _settings(conf: Mapping[str, str], environ: Mapping[str, str], scratch: str) -> str:
    """Return the file of Ivy's settings: the user's, or one that is written now."""
    if own := conf.get("spark.jars.ivySettings"):
        return own
    roots = [environ.get("DEFAULT_ARTIFACT_REPOSITORY"), *names_of(conf, "spark.jars.repositories")]
    file = Path(scratch, "ivysettings.xml")
    file.write_text(_SETTINGS.format(resolvers="\n".join(_resolvers(roots))))
    return str(file)


def _resolvers(roots: Sequence[str | None]) -> list[str]:
    """Return a resolver for each repository; the one without a root is Maven Central."""
    named = [f" root={quoteattr(root)}" if root else "" for root in roots]
    return [
        f'<ibiblio name="r{number}" m2compatible="true" usepoms="false"{root}/>'
        for number, root in enumerate(named)
    ]


def _ivy(environ: Mapping[str, str]) -> Path:
    """Return Ivy's jar, one of Spark's.

    Raises:
        FileNotFoundError: this Spark has none.
    """
    home = environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    jars = sorted(Path(home, "jars").glob("ivy-*.jar"))
    if not jars:
        raise FileNotFoundError(f"{home}/jars has no Ivy, which Spark fetches jars with")
    return jars[-1]


def _warnings(output: str) -> str:
    """Return Ivy's warnings in one line."""
    warnings = output.rpartition(":::: WARNINGS")[2].partition("::::")[0]
    return "; ".join(line.strip() for line in warnings.split("\n") if line.strip())[:1_000]


def _not_fetched(package: str, reason: str) -> SparkFailedError:
    return SparkFailedError(
        f"{package} could not be fetched: {reason}.",
        "If no Maven repository can be reached, put the jars into a folder and name it in"
        " spark.jars: `slackwater jars FOLDER` fetches them",
    )
