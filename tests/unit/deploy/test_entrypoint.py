"""The image's entry point, with programs in the place of Java's and Spark's that show how they
were called."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import DEPLOY

ENTRYPOINT = DEPLOY / "entrypoint.sh"
# What Spark's BasicExecutorFeatureStep gives each executor.
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2048m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "orders-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Make java, slackwater and spark-submit print their arguments, folder and class path."""
    for name in ("bin/java", "bin/slackwater", "spark/bin/spark-submit"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "print(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))\n"
        )
        program.chmod(0o755)
    return tmp_path / "spark"


def start(spark_home: Path, *arguments: str, **environ: str) -> tuple[list[str], str, Any]:
    """Run the entry point in a folder that can't be written to; return what it started."""
    done = subprocess.run(
        ["sh", str(ENTRYPOINT), *arguments],
        env={
            "PATH": f"{spark_home.parent / 'bin'}:{os.environ['PATH']}",
            "SPARK_HOME": str(spark_home),
            "SLACKWATER_SPARK_JARS": "/opt/slackwater/jars",
            "TMPDIR": str(spark_home.parent),
            **environ,
        },
        cwd="/proc/self",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    argv, folder, variables = json.loads(done.stdout)
    return argv, folder, variables


def test_an_executor_gets_every_option_of_the_jvm_in_order_and_unbroken(spark_home: Path) -> None:
    options = [f"-Dn={n}" for n in range(11)] + ["-Dname=two words; $(false) 'and' \"quotes\""]
    numbered = {f"SPARK_JAVA_OPT_{n}": option for n, option in enumerate(options)}
    argv, _, _ = start(spark_home, "executor", **EXECUTOR, **numbered)
    assert argv[1 : len(options) + 1] == options
    assert argv[len(options) + 1 : len(options) + 4] == [
        # Otherwise Spark's executor does not look at the file with its secret.
        "-Dspark.master=k8s://",
        "-Xms2048m",
        "-Xmx2048m",
    ]


def test_an_executor_takes_the_class_path_that_the_driver_names(spark_home: Path) -> None:
    named = {"SPARK_CLASSPATH": "/opt/slackwater/jars/*", "SPARK_CONF_DIR": "/opt/spark/conf"}
    argv, _, _ = start(spark_home, "executor", **EXECUTOR, **named)
    path = argv[argv.index("-cp") + 1]
    assert path == f"/opt/spark/conf:/opt/slackwater/jars/*:{spark_home}/jars/*"


def test_an_executor_works_in_a_folder_that_it_can_write_to(spark_home: Path) -> None:
    argv, folder, _ = start(spark_home, "executor", **EXECUTOR)
    assert Path(folder).parent == spark_home.parent
    assert os.access(folder, os.W_OK)
    assert argv[argv.index("--podName") + 1] == "orders-exec-3"


def test_the_driver_of_a_spark_application_is_submitted_with_the_jars(spark_home: Path) -> None:
    asked = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///main.py", "run"]
    argv, _, environ = start(spark_home, "driver", *asked, SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    assert argv[0] == f"{spark_home}/bin/spark-submit"
    assert argv[-4:] == asked
    assert "spark.driver.bindAddress=10.0.0.7" in argv
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    assert environ["SPARK_DIST_CLASSPATH"] == "/opt/slackwater/jars/*"


def test_anything_else_is_a_command_of_slackwater(spark_home: Path) -> None:
    argv, _, _ = start(spark_home, "run", "-c", "/etc/slackwater/slackwater.yaml")
    assert Path(argv[0]).name == "slackwater"
    assert argv[1:] == ["run", "-c", "/etc/slackwater/slackwater.yaml"]
