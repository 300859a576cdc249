"""Settings: where they come from, what wins, and that an error names its variable and never its value (DESIGN
18).
"""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError

from session_custody.core.errors import SettingsError
from session_custody.core.secret import Secret
from session_custody.settings import KafkaSettings, Settings, needed
from session_custody.settings.environment import ALLOW_UNKNOWN, CONFIG_FILE, SECRETS_DIR
from session_custody.settings.kafka import OWNED_OPTIONS

CANARY = "canary-4417"


def refused(environ: dict[str, str]) -> SettingsError:
    """The error that these variables end in; whatever it shows, no value of theirs is in it."""
    with pytest.raises(SettingsError) as caught:
        Settings.load(environ)
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown
    assert caught.value.__context__ is None or CANARY not in repr(caught.value.__context__)
    return caught.value


def test_defaults_stand_without_any_environment() -> None:
    settings = Settings.load({})
    assert settings == Settings()
    assert settings.kafka.topics.model_dump() == {
        "runs": "custody.runs",
        "steps": "custody.steps",
        "outcomes": "custody.outcomes",
        "dead_letters": "custody.dead-letters",
        "cursors": "custody.cursors",
    }
    assert settings.kafka.partitions == 12
    assert settings.limits.dedupe_horizon_s == settings.limits.orphan_hold_s == 7 * 24 * 3600
    assert settings.limits.default_expiry_s == 24 * 3600
    assert settings.http.host == "127.0.0.1"
    lanes = settings.lanes
    assert (lanes.unclean_after, lanes.suspect_at, lanes.suspects_at_once) == (2, 3, 4)


def test_building_by_hand_reads_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUSTODY_DEPLOYMENT", "ambient")
    monkeypatch.setenv("DATABASE_URL", "postgresql://ambient/db")
    assert Settings().deployment == "custody"
    assert Settings().postgres.dsn is None
    assert Settings.load().deployment == "ambient"


def test_settings_are_frozen() -> None:
    settings = Settings.load({})
    with pytest.raises(ValidationError):
        settings.deployment = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.kafka.group = "other"  # type: ignore[misc]


def test_explicit_beats_environment_beats_secrets_beats_file_beats_default(tmp_path: Path) -> None:
    config = tmp_path / "custody.toml"
    config.write_text(
        'deployment = "from-file"\n'
        "[kafka]\n"
        'group = "from-file"\n'
        'bootstrap_servers = "file:1"\n'
        "partitions = 3\n"
        "[kafka.extra]\n"
        "'socket.keepalive.enable' = true\n"
    )
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "custody_kafka__group").write_text("from-secrets\n")
    (secrets / "CUSTODY_DEPLOYMENT").write_text("from-secrets")
    (secrets / "CUSTODY_KAFKA__BOOTSTRAP_SERVERS").write_text("secrets:1\r\n")
    (secrets / "somebody-elses").write_text(CANARY)
    environ = {
        "CUSTODY_CONFIG_FILE": str(config),
        "CUSTODY_SECRETS_DIR": str(secrets),
        "CUSTODY_DEPLOYMENT": "from-environment",
        "CUSTODY_KAFKA__GROUP": "from-environment",
    }
    settings = Settings.load(environ, deployment="explicit")
    assert settings.deployment == "explicit"
    assert settings.kafka.group == "from-environment"
    assert settings.kafka.bootstrap_servers == "secrets:1"
    assert settings.kafka.partitions == 3
    assert settings.kafka.extra["socket.keepalive.enable"].reveal("test") == "true"
    assert settings.kafka.replication_factor is None


def test_an_explicit_section_is_a_dictionary_that_joins_or_a_value_that_replaces() -> None:
    environ = {"CUSTODY_KAFKA__GROUP": "g", "CUSTODY_KAFKA__PARTITIONS": "3"}
    joined = Settings.load(environ, kafka={"partitions": 4}).kafka
    assert (joined.group, joined.partitions) == ("g", 4)
    replaced = Settings.load(environ, kafka=KafkaSettings(partitions=5)).kafka
    assert (replaced.group, replaced.partitions) == ("custody", 5)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUSTODY_KAFKA__PARTITIONS", CANARY),
        ("CUSTODY_KAFKA__PARTITIONS", "0"),
        ("CUSTODY_KAFKA__SECURITY_PROTOCOL", CANARY),
        ("CUSTODY_KAFKA__TOPICS__RUNS", f"{CANARY} with blanks"),
        ("CUSTODY_KAFKA__EXTRA", '{"a": ' + CANARY),
        ("CUSTODY_KAFKA__EXTRA", CANARY),
        ("CUSTODY_KAFKA__EXTRA", '{"a": ["' + CANARY + '"]}'),
        ("CUSTODY_MODEL__URL", f"https://user:{CANARY}@gateway/v1"),
        ("CUSTODY_MODEL__URL", CANARY),
        ("CUSTODY_MODEL__KIND", CANARY),
        ("CUSTODY_MODEL__PROFILES", CANARY),
        ("CUSTODY_APP__TARGETS", f"[{CANARY}"),
        ("CUSTODY_APP__SHARED_RUNTIME", CANARY),
        ("CUSTODY_HTTP__PORT", "70000"),
        ("CUSTODY_LOG__LEVEL", CANARY),
        ("CUSTODY_LIMITS__DEDUPE_HORIZON_S", "nan"),
        ("CUSTODY_LIMITS__DEDUPE_HORIZON_S", "-1"),
        ("CUSTODY_DEPLOYMENT", f"{CANARY}/slash"),
        ("CUSTODY_REDIS__ROUTE_PIN_PATTERN", CANARY),
        ("CUSTODY_DRAIN_BUDGET_S", "45"),
        ("CUSTODY_ALLOW_UNKNOWN", CANARY),
        ("CUSTODY_CONFIG_FILE", "/nowhere/at/all"),
        ("CUSTODY_SECRETS_DIR", "/nowhere/at/all"),
    ],
)
def test_a_wrong_value_is_named_by_its_variable_and_not_shown(variable: str, value: str) -> None:
    error = refused({variable: value})
    assert error.setting == variable
    assert str(error).startswith(f"{variable}: ")


def test_every_wrong_setting_is_named_at_once() -> None:
    error = refused({"CUSTODY_HTTP__PORT": CANARY, "CUSTODY_KAFKA__PARTITIONS": CANARY})
    assert "CUSTODY_HTTP__PORT" in str(error)
    assert "CUSTODY_KAFKA__PARTITIONS" in str(error)


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"CUSTODY_KAFKA__SECURITY_PROTOCOL": "sasl_ssl"}, "CUSTODY_KAFKA__SASL_MECHANISM"),
        (
            {"CUSTODY_KAFKA__SECURITY_PROTOCOL": "sasl_ssl", "CUSTODY_KAFKA__SASL_MECHANISM": "plain"},
            "CUSTODY_KAFKA__SASL_USERNAME",
        ),
        (
            {"CUSTODY_KAFKA__SECURITY_PROTOCOL": "SASL_SSL", "CUSTODY_KAFKA__SASL_MECHANISM": "OAUTHBEARER"},
            "CUSTODY_KAFKA__SASL_OAUTH_CLIENT_ID",
        ),
        ({"CUSTODY_KAFKA__SASL_MECHANISM": "PLAIN"}, "CUSTODY_KAFKA__SASL_MECHANISM"),
        ({"CUSTODY_KAFKA__SSL_KEY_FILE": "/k.pem"}, "CUSTODY_KAFKA__SSL_CERTIFICATE_FILE"),
        ({"CUSTODY_KAFKA__TOPICS__STEPS": "custody.runs"}, "CUSTODY_KAFKA__TOPICS__STEPS"),
        (
            {"CUSTODY_POSTGRES__PASSWORD_FILE": "/p", "CUSTODY_POSTGRES__PASSWORD_COMMAND": "get it"},
            "CUSTODY_POSTGRES__PASSWORD_COMMAND",
        ),
        ({"CUSTODY_PUBLICATION__BACKLOG_SOFT": "100000"}, "CUSTODY_PUBLICATION__BACKLOG_SOFT"),
    ],
)
def test_settings_that_do_not_go_together_name_one(environ: dict[str, str], variable: str) -> None:
    assert refused(environ).setting == variable


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("CUSTODY_KAFKA__SASL_USER_NAME", "CUSTODY_KAFKA__SASL_USERNAME"),
        ("CUSTODY_KAFKA_GROUP", "CUSTODY_KAFKA__GROUP"),
        ("CUSTODY_POSTGRES_DSN", "CUSTODY_POSTGRES__DSN"),
        ("CUSTODY_KAFKA", "CUSTODY_KAFKA__GROUP"),
        ("CUSTODY_PORT", "CUSTODY_HTTP__PORT"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known_one(unknown: str, nearest: str) -> None:
    error = refused({unknown: CANARY})
    assert error.setting == unknown
    assert f"the nearest is {nearest}" in str(error)
    assert Settings.load({unknown: CANARY, "CUSTODY_ALLOW_UNKNOWN": "true"}) == Settings()


def test_an_unknown_key_in_the_file_is_refused_the_same_way(tmp_path: Path) -> None:
    config = tmp_path / "custody.toml"
    config.write_text(f'[kafka]\nsasl_user = "{CANARY}"\n')
    error = refused({"CUSTODY_CONFIG_FILE": str(config)})
    assert error.setting == "CUSTODY_KAFKA__SASL_USER"
    assert "CUSTODY_KAFKA__SASL_USERNAME" in str(error)


def test_a_section_that_is_no_table_in_the_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "custody.toml"
    config.write_text(f'kafka = "{CANARY}"\n')
    assert refused({"CUSTODY_CONFIG_FILE": str(config)}).setting == "CUSTODY_KAFKA"


@pytest.mark.parametrize("content", [f"kafka = {CANARY}", f'group = "{CANARY}', "\udcff"])
def test_a_file_that_is_no_toml_is_not_quoted(tmp_path: Path, content: str) -> None:
    config = tmp_path / "custody.toml"
    config.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert refused({"CUSTODY_CONFIG_FILE": str(config)}).setting == "CUSTODY_CONFIG_FILE"


def test_an_unknown_secret_file_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CUSTODY_POSTGRES__DNS").write_text(CANARY)
    error = refused({"CUSTODY_SECRETS_DIR": str(tmp_path)})
    assert error.setting == "CUSTODY_POSTGRES__DNS"
    assert "CUSTODY_POSTGRES__DSN" in str(error)


def test_an_empty_variable_counts_as_not_set() -> None:
    empty = {"CUSTODY_KAFKA__PARTITIONS": "", "CUSTODY_POSTGRES__DSN": "", "DATABASE_URL": ""}
    assert Settings.load(empty) == Settings()


def test_the_service_links_of_kubernetes_are_nobodys_settings() -> None:
    links = {
        "CUSTODY_SERVICE_HOST": "10.0.0.1",
        "CUSTODY_SERVICE_PORT": "8080",
        "CUSTODY_SERVICE_PORT_HTTP": "8080",
        "CUSTODY_PORT": "tcp://10.0.0.1:8080",
        "CUSTODY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "CUSTODY_PORT_8080_TCP_ADDR": "10.0.0.1",
        "CUSTODY_CONSOLE_SERVICE_HOST": "10.0.0.2",
    }
    assert Settings.load(links) == Settings()


@pytest.mark.parametrize("option", sorted(OWNED_OPTIONS))
def test_an_option_of_librdkafka_that_we_own_is_refused_by_name(option: str) -> None:
    extra = json.dumps({"socket.keepalive.enable": True, option.upper(): CANARY})
    error = refused({"CUSTODY_KAFKA__EXTRA": extra})
    assert error.setting == "CUSTODY_KAFKA__EXTRA"
    assert f"the option {option} " in str(error)
    assert OWNED_OPTIONS[option] in str(error)


def test_lists_and_tables_are_written_as_words_or_as_json() -> None:
    words = Settings.load(
        {
            "CUSTODY_APP__TARGETS": "https://a/v1, https://b/v1",
            "CUSTODY_MODEL__PROFILES": "fast=small, reasoning=large",
            "CUSTODY_POSTGRES__PASSWORD_COMMAND": "token-for --host 'db one'",
            "CUSTODY_KAFKA__EXTRA": "client.rack=a,linger.ms=5",
        }
    )
    as_json = Settings.load(
        {
            "CUSTODY_APP__TARGETS": '["https://a/v1", "https://b/v1"]',
            "CUSTODY_MODEL__PROFILES": '{"fast": "small", "reasoning": "large"}',
            "CUSTODY_POSTGRES__PASSWORD_COMMAND": '["token-for", "--host", "db one"]',
            "CUSTODY_KAFKA__EXTRA": '{"client.rack": "a", "linger.ms": 5}',
        }
    )
    assert words == as_json
    assert words.app.targets == ("https://a/v1", "https://b/v1")
    assert words.postgres.password_command == ("token-for", "--host", "db one")


def test_kafka_clients_are_told_where_how_and_who() -> None:
    settings = Settings.load(
        {
            "CUSTODY_KAFKA__BOOTSTRAP_SERVERS": "broker:9093",
            "CUSTODY_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
            "CUSTODY_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
            "CUSTODY_KAFKA__SASL_USERNAME": "app",
            "CUSTODY_KAFKA__SASL_PASSWORD": CANARY,
            "CUSTODY_KAFKA__SSL_CA_FILE": "/etc/ca.pem",
            "CUSTODY_KAFKA__EXTRA": "client.rack=a",
        }
    )
    assert settings.kafka.connection_options() == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "app",
        "sasl.password": CANARY,
        "ssl.ca.location": "/etc/ca.pem",
        "client.rack": "a",
    }
    assert CANARY not in repr(settings)


def test_a_missing_setting_is_named_when_it_is_needed() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings().kafka.connection_options()
    assert caught.value.setting == "CUSTODY_KAFKA__BOOTSTRAP_SERVERS"
    assert needed(Secret("x"), "postgres", "dsn") == Secret("x")


def dsn_of(environ: dict[str, str]) -> str | None:
    dsn = Settings.load(environ).postgres.dsn
    return None if dsn is None else dsn.reveal("test")


def test_postgres_is_also_named_by_database_url_and_by_libpqs_variables() -> None:
    libpq = {
        "PGHOST": "db",
        "PGPORT": "5433",
        "PGUSER": "app",
        "PGPASSWORD": "it's \\ here",
        "PGDATABASE": "custody",
    }
    assert dsn_of({}) is None
    assert dsn_of({"PGUSER": "app"}) is None, "a user alone names no server"
    as_conninfo = r"host='db' port='5433' dbname='custody' user='app' password='it\'s \\ here'"
    assert dsn_of(libpq) == as_conninfo
    assert dsn_of(libpq | {"DATABASE_URL": "postgresql://u/d"}) == "postgresql://u/d"
    ours = libpq | {"DATABASE_URL": "postgresql://u/d", "CUSTODY_POSTGRES__DSN": "postgresql://ours/d"}
    assert dsn_of(ours) == "postgresql://ours/d"


def test_the_drain_budget_follows_the_session_timeout() -> None:
    assert Settings().drain_budget_s == 15.0
    assert Settings.load({"CUSTODY_KAFKA__SESSION_TIMEOUT_S": "6"}).drain_budget_s == 2.0
    assert refused({"CUSTODY_DRAIN_BUDGET_S": "6", "CUSTODY_KAFKA__SESSION_TIMEOUT_S": "6"}).setting == (
        "CUSTODY_DRAIN_BUDGET_S"
    )


def test_a_route_pins_key_holds_the_session() -> None:
    assert Settings().redis.route_pin_key("sess-88") == "custody:route-pin:{sess-88}"


def test_every_setting_is_described() -> None:
    rows = Settings.describe()
    assert all(row.text.endswith(".") for row in rows)
    assert len({row.variable for row in rows}) == len(rows)
    secret = {row.variable for row in rows if row.secret}
    assert secret >= {"CUSTODY_POSTGRES__DSN", "CUSTODY_KAFKA__SASL_PASSWORD", "CUSTODY_REDIS__URL"}


def test_the_reference_page_is_what_the_settings_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    how = "python -m session_custody.settings > docs/settings.md"
    assert page.read_text(encoding="utf-8") == Settings.reference(), how


def test_every_variable_that_is_written_anywhere_exists() -> None:
    root = Path(__file__).parents[2]
    known = {row.variable for row in Settings.describe()} | {CONFIG_FILE, SECRETS_DIR, ALLOW_UNKNOWN}
    sections = {name.rsplit("__", depth)[0] for name in known for depth in (1, 2)}
    links = re.compile(r"CUSTODY_(SERVICE_HOST|PORT)")
    files = [
        *(root / "src").rglob("*.py"),
        *(
            file
            for folder in ("docs", "deploy", "examples")
            for file in (root / folder).rglob("*")
            if file.is_file()
        ),
        *root.glob("*.md"),
        root / "docker-compose.yml",
    ]
    unknown = {
        f"{file.relative_to(root)}: {name}"
        for file in files
        for name in re.findall(
            r"\bCUSTODY_[A-Z][A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8", errors="replace")
        )
        if name not in known and name not in sections and not links.fullmatch(name)
    }
    assert unknown == set()
