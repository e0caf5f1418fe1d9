"""A secret of the settings is in nothing that people read, whether they are right or not."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from slackwater import log_lines, secrecy
from slackwater.commands.error_texts import text_of
from slackwater.config.load import load_settings
from slackwater.errors import SettingsError
from slackwater.secrecy import SHOWN, is_secret, keep_secret, masked
from slackwater.state.store import Store
from tests.unit.config.test_settings import MINIMAL

# An account's key in Azure is in base 64.
SECRET = "Hidden4711ab"
Sections = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A setting that can hold a secret.

    Attributes:
        section, key: the setting.
        value: has SECRET in it.
        others: what the setting needs besides.
    """

    section: str
    key: str
    value: Any
    others: Mapping[str, Any]

    def sections(self, value: Any) -> Sections:
        of_section = {**MINIMAL.get(self.section, {}), **self.others, self.key: value}
        return {**MINIMAL, self.section: of_section}


BROKERS = {"kafka.bootstrap.servers": "b:9092"}
KAFKA: Sections = {"kind": "kafka", "options": BROKERS, "checkpoint": "c"}
JAAS = f'org.Plain required username="u" password="{SECRET}";'
IN_S3 = {"path": "s3://bucket/orders"}
S3 = {"aws_access_key_id": "AKIA", "aws_region": "x"}
IN_AZURE = {"path": "az://bucket/orders"}
PLACES = {
    "store": Place("state", "url", f"postgresql+psycopg://u:{SECRET}@h/db", {}),
    "store's option": Place("state", "url", f"postgresql+psycopg://u@h/db?password={SECRET}", {}),
    "key of a certificate": Place(
        "state", "url", f"postgresql+psycopg://u@h/db?sslpassword={SECRET}", {}
    ),
    "registry": Place(
        "sink",
        "confluent_schema_registry",
        f"https://u:{SECRET}@registry",
        {**KAFKA, "format": "avro"},
    ),
    "JAAS": Place("sink", "options", {**BROKERS, "kafka.sasl.jaas.config": JAAS}, KAFKA),
    "keystore": Place(
        "sink",
        "options",
        {**BROKERS, "kafka.ssl.keystore.password": SECRET},
        {**KAFKA, "delivery": "at_least_once"},
    ),
    "key of S3": Place("sink", "storage_options", {**S3, "aws_secret_access_key": SECRET}, IN_S3),
    "token of S3": Place(
        "sink",
        "storage_options",
        {**S3, "aws_secret_access_key": "other", "aws_session_token": SECRET},
        IN_S3,
    ),
    "key of Azure": Place(
        "sink",
        "storage_options",
        {"azure_storage_account_name": "a", "azure_storage_account_key": SECRET},
        IN_AZURE,
    ),
    "database of Spark's": Place(
        "sink", "options", {"password": SECRET}, {"kind": "spark", "format": "jdbc"}
    ),
    "key of Hadoop's S3": Place("spark", "conf", {"spark.hadoop.fs.s3a.secret.key": SECRET}, {}),
    "key of Hadoop's Azure": Place(
        "spark", "conf", {"spark.hadoop.fs.azure.account.key.a.dfs.core": SECRET}, {}
    ),
    "secret of Spark": Place("spark", "conf", {"spark.authenticate.secret": SECRET}, {}),
    "traces": Place("trace", "endpoint", f"https://u:{SECRET}@collector/v1/traces", {}),
}


def in_file(text: str, folder: Path) -> Path:
    path = folder / "slackwater.yaml"
    path.write_text(text)
    return path


def right(place: Place) -> tuple[str, dict[str, str]]:
    return yaml.safe_dump(place.sections(place.value)), {}


def in_variable(place: Place) -> tuple[str, dict[str, str]]:
    value = place.value if isinstance(place.value, str) else json.dumps(place.value)
    sections = place.sections(place.value)
    del sections[place.section][place.key]
    return yaml.safe_dump(sections), {f"SLACKWATER_{place.section}_{place.key}".upper(): value}


def with_a_bracket_too_few(place: Place) -> tuple[str, dict[str, str]]:
    text, variables = in_variable(place)
    return text, {name: value.rstrip("}") for name, value in variables.items()}


def with_a_quote_too_few(place: Place) -> tuple[str, dict[str, str]]:
    text = yaml.safe_dump(place.sections(place.value), width=1_000)
    return text.replace(SECRET, f"{SECRET}'\": [") + "\n\t@", {}


def without_a_scheme(place: Place) -> tuple[str, dict[str, str]]:
    value = place.value.partition("://")[2] if isinstance(place.value, str) else place.value
    return yaml.safe_dump(place.sections(value)), {}


def of_a_wrong_type(place: Place) -> tuple[str, dict[str, str]]:
    return yaml.safe_dump(place.sections([[place.value]])), {}


def with_an_unknown_key(place: Place) -> tuple[str, dict[str, str]]:
    sections = place.sections(place.value)
    sections[place.section][f"{place.key}x"] = place.value
    return yaml.safe_dump(sections), {}


WAYS: list[Callable[[Place], tuple[str, dict[str, str]]]] = [
    right,
    in_variable,
    with_a_bracket_too_few,
    with_a_quote_too_few,
    without_a_scheme,
    of_a_wrong_type,
    with_an_unknown_key,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PLACES)
def test_no_message_about_settings_has_their_secret(
    name: str, way: Callable[[Place], tuple[str, dict[str, str]]], tmp_path: Path
) -> None:
    place = PLACES[name]
    text, variables = way(place)
    file = in_file(text, tmp_path)
    refused = refusal(file, variables)
    if refused is None:
        # Loaded, it is taken out of whatever is said later.
        assert SECRET not in masked(f"the server at {SECRET} answered: {SECRET!r}")
    else:
        assert way not in (right, in_variable), refused
        assert SECRET not in refused


def refusal(file: Path, variables: Mapping[str, str]) -> str | None:
    try:
        load_settings(file, variables)
    except SettingsError as error:
        return text_of(error)
    return None


def test_a_line_of_the_log_has_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    keep_secret({"aws_secret_access_key": SECRET})
    for form in ("console", "json"):
        record = logging.LogRecord("x", logging.ERROR, "", 0, f"refused {SECRET}", (), None)
        line = log_lines.handler(form).format(record)
        assert SHOWN in line
        assert SECRET not in line
        if form == "json":
            assert json.loads(line)["event"] == f"refused {SHOWN}"


def test_a_line_of_json_stays_json() -> None:
    values = {"url": f"postgresql://u:{SECRET}@h/db", "password": SECRET, "n": {"secret": "a b"}}
    shown = json.loads(masked(json.dumps(values)))
    assert SECRET not in str(shown)
    assert shown["n"] == {"secret": SHOWN}


def test_the_metadata_store_keeps_no_secret(tmp_path: Path) -> None:
    """The reason of a failure is shown by status and page."""
    keep_secret({"aws_secret_access_key": SECRET})
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}?password={SECRET}", migrate=True)
    assert SECRET not in store.url
    store.close()


@given(st.text(min_size=5, max_size=30).filter(lambda text: text.strip() == text))
def test_a_secret_of_any_signs_is_taken_out(secret: str) -> None:
    # An ordinary word stays: each line has the program's name.
    assume(secret not in "slackwater")
    secrecy._SECRETS.clear()
    keep_secret({"password": secret})
    assert secret not in masked(f"A{secret}B {secret}").replace(SHOWN, "") or secret in "AB "


def test_settings_that_are_no_secret_are_shown() -> None:
    for name in (
        "aws_access_key_id",
        "aws_region",
        "kafka.sasl.mechanism",
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.authenticate.secret.file",
        "sasl.oauthbearer.token.endpoint.url",
        "write.merge.mode",
        "google_application_credentials",
        # A shell's working directory.
        "PWD",
        "OLDPWD",
    ):
        assert not is_secret(name), name
    for text in (
        'FATAL: password authentication failed for user "x"',
        "http://127.0.0.1:8080/",
        "s3://bucket/orders/date=2026-01-01",
        "projects/p/instances/i/databases/d",
    ):
        assert masked(text) == text


def test_a_password_that_is_a_word_of_other_settings_goes_where_passwords_stand() -> None:
    """The Compose file's is the user's name, and this program's."""
    url = "postgresql+psycopg://orders:orders@host/db"
    keep_secret({"state": {"url": url}, "key": {"password": "slackwater"}})
    assert masked(f"`slackwater run` of orders with {url}") == (
        f"`slackwater run` of orders with postgresql+psycopg://orders:{SHOWN}@host/db"
    )
