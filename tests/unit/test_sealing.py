"""What is sent to Spark's workers can be read where the key is, and nowhere else."""

import base64
import os
import pickle
import stat
from pathlib import Path

import pytest

from slackwater import sealing
from slackwater.config.settings import Settings
from slackwater.pipeline.source import source_options
from slackwater.pipeline.spark.task_writing import TaskWritingChangesSource
from slackwater.scheduler.options import hand_over
from slackwater.sealing import UnsealError, seal, seal_nothing, unseal, use_key
from slackwater.spark_sink.kafka.positions import Position
from slackwater.spark_sink.kafka.shard_sender import ShardSender
from slackwater.spark_sink.kafka.transaction import Ids
from slackwater.worker_errors import record_of
from tests.unit.config.test_settings import MINIMAL

PASSWORD = "never-seen-again"
URL = f"postgresql+psycopg://user:{PASSWORD}@host/state"


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test changes of the process's key."""
    monkeypatch.setattr(sealing._Own, "key", None)
    monkeypatch.delenv("_SPARK_AUTH_SECRET", raising=False)


def test_a_worker_on_this_machine_reads_the_key_from_a_file_of_this_user_alone() -> None:
    text = seal(URL)
    assert PASSWORD not in text
    assert unseal(text) == URL
    assert sealing._Own.key is not None
    [file] = sealing._Own.key.files
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(Path(file).parent).st_mode) == 0o700


def test_each_start_has_another_key() -> None:
    assert use_key().secret != use_key().secret


def test_an_executor_has_the_key_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = use_key("of the application").files
    text = seal(URL)
    Path(file).unlink()
    with pytest.raises(UnsealError):
        unseal(text)
    monkeypatch.setenv("_SPARK_AUTH_SECRET", "another application's")
    with pytest.raises(UnsealError) as caught:
        unseal(text)
    record = record_of(caught.value)
    assert record is not None
    assert "has the secret" in record.message
    monkeypatch.setenv("_SPARK_AUTH_SECRET", "of the application")
    assert unseal(text) == URL


def test_an_executor_has_the_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    of_executor = tmp_path / "secret"
    of_executor.write_text("of the application\n")
    [file, _] = use_key("of the application", [str(of_executor)]).files
    text = seal(URL)
    Path(file).unlink()
    assert unseal(text) == URL


def test_an_executor_in_a_pod_has_the_key_in_a_mounted_file(tmp_path: Path) -> None:
    """Spark on Kubernetes has a file's bytes in base64 as its secret."""
    mounted = tmp_path / "secret"
    mounted.write_bytes(b"of the release\n")
    [file, _] = use_key(base64.b64encode(b"of the release\n").decode(), [str(mounted)]).files
    text = seal(URL)
    Path(file).unlink()
    assert unseal(text) == URL


def test_a_text_that_nobody_sealed_is_taken_as_it_is() -> None:
    assert unseal(URL) == URL
    seal_nothing()
    assert seal(URL) == URL


def test_what_only_this_process_sees_is_not_sealed_and_needs_no_key() -> None:
    settings = Settings.model_validate(MINIMAL | {"state": {"url": URL}})
    assert source_options(settings).state_url == URL
    assert sealing._Own.key is None


def test_what_spark_carries_to_tasks_has_no_password() -> None:
    """The options of the source stand in plans; what tasks call is pickled into them."""
    settings = Settings.model_validate(MINIMAL | {"state": {"url": URL}})
    options = hand_over(source_options(settings))
    [text] = options.values()
    assert PASSWORD.encode() not in base64.b64decode(text)
    writer = TaskWritingChangesSource({**options, "task_writer": seal(f'{{"key": "{PASSWORD}"}}')})
    sender = ShardSender((("sasl.password", PASSWORD),), Ids("group", "topic"), Position(1, 2))
    for carried in (writer, sender):
        assert PASSWORD.encode() not in pickle.dumps(carried)
    assert pickle.loads(pickle.dumps(sender)) == sender
