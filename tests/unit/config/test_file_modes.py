"""What is made is its user's alone, unless the settings say otherwise."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from slackwater.config.load import load_pipelines, load_settings
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.own_folder import own_folder
from slackwater.spark_sink.errors import ObjectStoreError
from tests.unit.config.test_settings import MINIMAL

WITH_PASSWORD = MINIMAL | {"state": {"url": "postgresql+psycopg://u:hidden@h/db"}}


def in_file(folder: Path, values: dict[str, Any], mode: int) -> Path:
    file = folder / "slackwater.yaml"
    file.write_text(yaml.safe_dump(values))
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("mode", "umask"),
    [("0600", 0o077), ("0640", 0o027), ("0644", 0o022), ("0660", 0o007), ("0664", 0o002)],
)
@pytest.mark.parametrize("is_quoted", [True, False])
def test_a_mode_lets_the_same_users_read_files_and_enter_folders(
    mode: str, umask: int, is_quoted: bool
) -> None:
    value = yaml.safe_load(f'"{mode}"' if is_quoted else mode)
    settings = Settings.model_validate(MINIMAL | {"sink": {**MINIMAL["sink"], "file_mode": value}})
    assert settings.sink.umask == umask
    assert Settings.model_validate(MINIMAL).sink.umask == 0o077


def test_pipelines_of_one_process_have_one_mode(tmp_path: Path) -> None:
    one = {"sink": {"path": "a", "checkpoint": "ac"}}
    other = {"sink": {"path": "b", "checkpoint": "bc", "file_mode": "0644"}}
    values = {**MINIMAL, "pipelines": {"one": one, "other": other}}
    del values["pipeline"]
    with pytest.raises(SettingsError, match="one 0600, other 0644"):
        load_pipelines(in_file(tmp_path, values, 0o600), {})


def test_a_file_with_a_password_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="every user of this machine can read it") as caught:
        load_settings(in_file(tmp_path, WITH_PASSWORD, 0o644), {})
    assert "hidden" not in str(caught.value)
    assert f"chmod o-r {tmp_path / 'slackwater.yaml'}" in caught.value.hint
    load_settings(in_file(tmp_path, WITH_PASSWORD, 0o640), {})
    load_settings(in_file(tmp_path, MINIMAL, 0o644), {})
    allowed = WITH_PASSWORD | {"allow_readable_secrets": True}
    load_settings(in_file(tmp_path, allowed, 0o644), {})
    name = "SLACKWATER_ALLOW_READABLE_SECRETS"
    load_settings(in_file(tmp_path, WITH_PASSWORD, 0o644), {name: "true"})
    with pytest.raises(SettingsError, match="every user"):
        load_settings(in_file(tmp_path, WITH_PASSWORD, 0o644), {name: "false"})
    variable = {"SLACKWATER_STATE_URL": "postgresql+psycopg://u:hidden@h/db"}
    load_settings(in_file(tmp_path, MINIMAL, 0o644), variable)


def test_a_file_that_everybody_can_write_is_warned_of(tmp_path: Path) -> None:
    with capture_logs() as lines:
        load_settings(in_file(tmp_path, MINIMAL, 0o602), {})
    assert [line["event"] for line in lines] == ["every user can write the settings file"]


def hostile(folder: Path, name: str) -> Path:
    """Make what another user could make in the place of a folder of ours."""
    place, elsewhere = folder / name, folder / "elsewhere"
    elsewhere.mkdir()
    match name:
        case "open":
            place.mkdir()
            place.chmod(0o777)
        case "link":
            place.symlink_to(elsewhere)
        case "broken link":
            place.symlink_to(folder / "nowhere")
        case "file":
            place.write_text("")
        case "pipe":
            os.mkfifo(place)
    return place


@pytest.mark.parametrize("name", ["open", "link", "broken link", "file", "pipe"])
def test_a_folder_that_another_user_could_enter_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        own_folder(hostile(tmp_path, name))


def test_a_folder_of_this_user_is_taken_again(tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "mine")
    (folder / "file").write_text("")
    # Only this user could have written to it.
    folder.chmod(0o755)
    assert own_folder(folder) == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_default_checkpoint_is_not_one_that_others_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sink = Settings.model_validate(MINIMAL | {"sink": {"path": "gs://bucket/orders"}}).sink
    sink.claim_places()
    Path(sink.checkpoint).chmod(0o777)
    with pytest.raises(ObjectStoreError, match="not this user's alone"):
        sink.claim_places()
